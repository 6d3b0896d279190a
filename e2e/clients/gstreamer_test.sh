#!/bin/bash
# Debian's GStreamer with its CUDA elements on the simulated GPU, bare and under a claim.
#
#   gstreamer_test.sh BUILD    (run from the repository's root, as root; $CC compiles)
set -u -o pipefail

build=$1
root=$build/clients/gstreamer
# The elements are there only where NVIDIA's decoder is, which is NVIDIA's own here and never used.
scripts/debian-root "$root" bookworm gstreamer1.0-tools gstreamer1.0-plugins-base gstreamer1.0-plugins-bad &&
    scripts/nvidia-packages "$root" bookworm libnvcuvid1 libnvrtc11.2 libnvrtc-builtins11.8 || exit 1
ln -sf nvidia/current/libnvcuvid.so.1 "$root/usr/lib/x86_64-linux-gnu/libnvcuvid.so.1"
ln -sf libnvrtc.so.11.2 "$root/usr/lib/x86_64-linux-gnu/libnvrtc.so"
. e2e/clients/node.sh

frames=(videotestsrc num-buffers=5 ! video/x-raw,format=NV12,width=320,height=240)
on_gpu='video/x-raw(memory:CUDAMemory)'
down=(cudadownload ! video/x-raw)

# --- as without the shadow ---

in_root bare frames gst-launch-1.0 -q "${frames[@]}" ! fdsink >"$node/frames"
check "bytes of five frames" 576000 "$(wc -c <"$node/frames")"
run_each copies gst-launch-1.0 -q "${frames[@]}" ! cudaupload ! "$on_gpu" ! "${down[@]}" ! fdsink
check "what was copied up and down" "$(cksum <"$node/frames")" "$(cksum <"$node/shadow-copies.out")"
# The simulated GPU runs no kernel, so what these make of the frames is not looked at.
run_each scale gst-launch-1.0 -q "${frames[@]}" ! cudaupload ! cudascale ! "$on_gpu,width=640,height=480" ! \
    "${down[@]}" ! fakesink
check "scale: a kernel for each of five frames" 5 "$(record shadow-scale launches)"
run_each convert gst-launch-1.0 -q "${frames[@]}" ! cudaupload ! cudaconvert ! "$on_gpu,format=BGRA" ! \
    "${down[@]}" ! fakesink
check "convert: a kernel for each of five frames" 5 "$(record shadow-convert launches)"

# --- at the limit ---

# A frame of 3840x2160 takes 18 MiB, and the queue keeps all of them: 40 frames fit into the GPU, but not into the claim.
large=(videotestsrc num-buffers=40 pattern=black ! video/x-raw,format=NV12,width=3840,height=2160 ! cudaupload ! "$on_gpu" !
    queue max-size-buffers=0 max-size-bytes=0 max-size-time=0 min-threshold-buffers=40 ! "${down[@]}" ! fakesink)
in_root bare bare-large gst-launch-1.0 -q "${large[@]}" >/dev/null 2>"$node/said"
check "40 large frames without a limit" "0 " "$? $(cat "$node/said")"
in_root shadow shadow-large GST_DEBUG=cudaallocator:2 GST_DEBUG_NO_COLOR=1 gst-launch-1.0 -q "${large[@]}" >/dev/null 2>"$node/said"
check "40 large frames, refused" 1 "$(($? != 0))"
check "40 large frames, refused as users of GStreamer know it" 1 \
    "$(grep -c 'CUDA call failed: CUDA_ERROR_OUT_OF_MEMORY, out of memory' "$node/said")"
check_at_most "40 large frames, by the record" $((limit * mib)) "$(record shadow-large peak_bytes)"
check_at_most "one more frame had not fitted" $((20 * mib)) $((limit * mib - $(record shadow-large peak_bytes)))
check "40 large frames: nothing stays" 0 "$(record shadow-large bytes)"

finish
