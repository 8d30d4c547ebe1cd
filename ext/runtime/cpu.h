/* What this processor and its operating system together can run. */
#ifndef RILLM_CPU_H
#define RILLM_CPU_H
#include "../rillm.h"
bool cpu_has_isa(enum Isa isa);
#endif
