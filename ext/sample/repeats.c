/* Where the end of a text stood before: the Z function of the text read backwards, in linear time. */
#include "../rillm.h"

void suffix_matches(const int32_t *ids, int32_t n, int32_t *lengths)
{
    int32_t left = 0, right = 0; /* the match reaching furthest back, in distances from the end */
    for (int32_t i = 1; i < n; i++) {
        int32_t length = 0;
        if (i < right) { /* inside that match: what is known of its own beginning holds here */
            length = lengths[n - 1 - (i - left)];
            length = length < right - i ? length : right - i;
        }
        while (i + length < n && ids[n - 1 - i - length] == ids[n - 1 - length])
            length++;
        if (i + length > right) {
            left = i;
            right = i + length;
        }
        lengths[n - 1 - i] = length;
    }
}
