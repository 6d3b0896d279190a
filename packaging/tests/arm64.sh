# The packages of arm64, as far as an emulator goes. Sourced by package_test.sh.

arm64=$layers/arm64
dpkg-deb --extract "$dist"/*_arm64.deb "$arm64"
emulate() { qemu-aarch64-static -L /usr/aarch64-linux-gnu "$@"; }

check "arm64: tranche" "$version" "$(emulate "$arm64/usr/bin/tranche" version)"
check "arm64: tranche-hook" "tranche-hook version $version" "$(emulate "$arm64/usr/bin/tranche-hook" --version)"
check "arm64: tranche-runtime" "tranche-runtime version $version" "$(emulate "$arm64/usr/bin/tranche-runtime" --tranche-version)"
for name in nomad-device-tranche nomad-driver-tranche; do
    check "arm64: $name" "$name version $version" "$(emulate "$arm64/usr/lib/tranche/plugins/$name" --version)"
done

# The shadow library in front of a driver of two functions: it loads, refuses a process without a claim (CUDA's error 802), and
# passes on what it does not shadow. The simulated driver reserves more addresses than the emulator can serve.
shadow=$layers/shadow
mkdir -p "$shadow/.tranche"
cp "$arm64/usr/lib/tranche/libcuda.so.1" "$shadow/"
aarch64-linux-gnu-gcc -shared -fPIC -o "$shadow/.tranche/driver-libcuda.so" -x c - <<'DRIVER'
int cuInit(unsigned flags) { return flags == 0 ? 0 : 1; }
int cuDriverGetVersion(int *version) { *version = 12345; return 0; }
DRIVER
aarch64-linux-gnu-gcc -o "$shadow/probe" -x c - -ldl <<'PROBE'
#include <dlfcn.h>
#include <stdio.h>
int main(void) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW);
    int version = 0;
    if (cuda == NULL) { return puts(dlerror()); }
    ((int (*)(int *))dlsym(cuda, "cuDriverGetVersion"))(&version);
    return printf("%d %d\n", ((int (*)(unsigned))dlsym(cuda, "cuInit"))(0), version) < 0;
}
PROBE
check "arm64: the shadow library" "802 12345" "$(emulate -E "LD_LIBRARY_PATH=$shadow" "$shadow/probe" 2>/dev/null)"
