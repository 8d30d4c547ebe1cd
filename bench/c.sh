#!/usr/bin/env bash
# Builds the engine and a C file of this folder with the engine's own flags, and runs it: bench/c.sh price, or
# bench/c.sh stream [FORMAT,...] [ISA,...] [ROWS,...]
set -euo pipefail
cd "$(dirname "$0")/.."
name=$1
shift
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
flags=(-std=c11 -O3 -fno-math-errno -fno-trapping-math -ffp-contract=off -Iext)
narrow=(-mavx512f -mavx512vl -mavx512vnni -mavx2 -mfma -mf16c)
wide=("${narrow[@]}" -mavx512bw -mavx512dq -mprefer-vector-width=512)
own=()
[ "$name" != price ] || own=("${wide[@]}" -mavx512bf16) # its kernels are written for them
for source in ext/{pack,runtime}/*.c ext/kernels/{dispatch,isa_portable}.c; do
    gcc -c "${flags[@]}" "$source" -o "$folder/$(basename "$source").o"
done
gcc -c "${flags[@]}" -mavx2 -mfma -mf16c ext/kernels/isa_avx2.c -o "$folder/isa_avx2.o"
gcc -c "${flags[@]}" -mavx2 -mfma -mf16c -mavxvnni ext/kernels/isa_avxvnni.c -o "$folder/isa_avxvnni.o"
gcc -c "${flags[@]}" "${narrow[@]}" ext/kernels/isa_avx512vnnivl.c -o "$folder/isa_avx512vnnivl.o"
gcc -c "${flags[@]}" "${wide[@]}" ext/kernels/isa_avx512vnni.c -o "$folder/isa_avx512vnni.o"
gcc "${flags[@]}" "${own[@]}" "bench/$name.c" "$folder"/*.o -o "$folder/$name" -pthread -lm
"$folder/$name" "$@"
