#!/bin/bash
# Debian's ffmpeg on the simulated GPU, bare and under a claim: frames go up, through kernels and down again.
#
#   ffmpeg_test.sh BUILD    (run from the repository's root, as root; $CC compiles)
set -u -o pipefail

build=$1
root=$build/clients/ffmpeg
scripts/debian-root "$root" bookworm ffmpeg || exit 1
. e2e/clients/node.sh

ffmpeg=(ffmpeg -hide_banner -nostdin -loglevel error -init_hw_device cuda=gpu:0 -filter_hw_device gpu -f lavfi)
down=hwdownload,format=nv12

# --- as without the shadow ---

small=(-i testsrc2=duration=1:size=320x240:rate=5,format=nv12)
in_root bare frames "${ffmpeg[@]}" "${small[@]}" -f framemd5 - >"$node/frames"
check "frames" 5 "$(grep -vc '^#' "$node/frames")"
run_each copies "${ffmpeg[@]}" "${small[@]}" -vf "hwupload_cuda,$down" -f framemd5 -
check "what was copied up and down" "$(cat "$node/frames")" "$(cat "$node/shadow-copies.out")"
# The simulated GPU runs no kernel, so what these make of the frames is not looked at.
run_each scale "${ffmpeg[@]}" "${small[@]}" -vf "hwupload_cuda,scale_cuda=640:480,$down" -f null -
check "scale: kernels for luma and chroma of five frames" 10 "$(record shadow-scale launches)"
run_each yadif "${ffmpeg[@]}" "${small[@]}" -vf "hwupload_cuda,yadif_cuda,$down" -f null -
check "yadif: kernels for luma and chroma of five frames" 10 "$(record shadow-yadif launches)"
# Not thumbnail_cuda: this ffmpeg crashes when it frees that filter, after the last call of CUDA.
run_each overlay "${ffmpeg[@]}" "${small[@]}" -f lavfi "${small[@]}" -filter_complex \
    "[0]hwupload_cuda[a];[1]hwupload_cuda[b];[a][b]overlay_cuda,$down" -f null -

# --- at the limit ---

# A frame of 3840x2160 takes 12 MiB, and reverse keeps all of them: 60 frames fit into the GPU, but not into the claim.
large=(-i color=duration=60:size=3840x2160:rate=1,format=nv12 -vf "hwupload_cuda,reverse,$down" -f null -)
in_root bare bare-large "${ffmpeg[@]}" "${large[@]}" >/dev/null 2>"$node/said"
check "60 large frames without a limit" "0 " "$? $(cat "$node/said")"
in_root shadow shadow-large "${ffmpeg[@]}" "${large[@]}" >/dev/null 2>"$node/said"
check "60 large frames, refused" 1 "$(($? != 0))"
check "60 large frames, refused as users of ffmpeg know it" 1 \
    "$(grep -c 'cuMemAlloc.* failed -> CUDA_ERROR_OUT_OF_MEMORY: out of memory' "$node/said")"
check_at_most "60 large frames, by the record" $((limit * mib)) "$(record shadow-large peak_bytes)"
check_at_most "one more frame had not fitted" $((16 * mib)) $((limit * mib - $(record shadow-large peak_bytes)))
check "60 large frames: nothing stays" 0 "$(record shadow-large bytes)"
run_each again "${ffmpeg[@]}" "${small[@]}" -vf "hwupload_cuda,$down" -f framemd5 -

finish
