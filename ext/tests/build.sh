#!/usr/bin/env bash
# Builds the C runner: build.sh OUTPUT COMPILER [FLAGS...]. The engine's own flags come from setup.py, FLAGS go last.
# MAIN=ext/tests/fuzz/blocks.c builds that file over the engine instead.
set -euo pipefail
cd "$(dirname "$0")/../.."
output=$1 compiler=$2
shift 2

constants() { # NAME [KEY]: a list of setup.py, one item a line
    "${PYTHON:-python3}" - "$@" <<'END'
import ast, sys
for node in ast.parse(open("setup.py").read()).body:
    if isinstance(node, ast.Assign) and node.targets[0].id == sys.argv[1]:
        value = ast.literal_eval(node.value)
        print(*(value[sys.argv[2]] if sys.argv[2:] else value), sep="\n")
END
}

mapfile -t flags < <(constants C_FLAGS)
flags+=(-Iext -Werror "$@")
isas=$(constants ISAS)
case $("$compiler" -dumpmachine) in x86_64*) ;; *) isas=portable ;; esac

objects=$output.objects
rm -rf "$objects" && mkdir -p "$objects"
{
    for source in ext/{engine,pack,runtime,sample}/*.c ${MAIN:-ext/tests/*.c} ext/kernels/dispatch.c; do
        echo "$source"
    done
    for isa in $isas; do
        echo "ext/kernels/isa_$isa.c" $(constants ISAS "$isa")
    done
} | while read -r source own_flags; do
    echo "$compiler -c $source -o $objects/$(tr / _ <<<"$source").o ${flags[*]} $own_flags"
done | xargs -P "$(nproc)" -d '\n' -n 1 bash -c '$0'
[ -n "${MAIN:-}" ] || set -- "$@" -Wl,--wrap=pthread_create,--wrap=mmap
"$compiler" "$objects"/*.o -o "$output" "$@" -pthread -lm
