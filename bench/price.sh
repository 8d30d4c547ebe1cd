#!/usr/bin/env bash
# Builds the engine and bench/price.c with the engine's own flags, and runs it.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags=(-std=c11 -O3 -fno-math-errno -ffp-contract=off -Iext)
wide=(-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c)
for source in ext/{pack,runtime}/*.c ext/kernels/{dispatch,isa_portable}.c; do
    gcc -c "${flags[@]}" "$source" -o "$folder/$(basename "$source").o"
done
for isa in avx2 avxvnni avx512vnnivl avx512vnni; do
    gcc -c "${flags[@]}" "${wide[@]}" -mavxvnni "ext/kernels/isa_$isa.c" -o "$folder/isa_$isa.o"
done
gcc "${flags[@]}" "${wide[@]}" -mavx512bf16 bench/price.c "$folder"/*.o -o "$folder/price" -pthread -lm
"$folder/price"
