#!/bin/bash
# Compares intercept/driver/nvml_api.h, and NVML's functions in shadowed.h, with NVIDIA's header: values of enumerators and
# constants, sizes of types, offsets of fields, and prototypes.
#
#   nvml_headers_test.sh NVML.H    (run from the repository's root; $CC compiles)
set -eu -o pipefail

theirs=$1
ours=$PWD/intercept/driver/nvml_api.h
cc=${CC:-gcc}
work=$(mktemp -d "${TMPDIR:-/tmp}/tranche-nvml-headers-XXXXXX")
trap 'rm -rf "$work"' EXIT

# The declarations of nvml_api.h, one row per fact: VALUE(name), TYPE(type), FIELD(type, field).
awk '
    /^typedef (struct|enum) [A-Za-z_0-9]+ {/ { kind = $2; name = $3; rows = ""; next }
    /^} / && kind != "" {
        sub(/^} */, ""); sub(/;.*/, "")
        count = split($0, names, /, */)
        for (i = 1; i <= count; i++) {
            printf "TYPE(%s)\n", names[i]
            of_type = rows
            gsub(/@/, names[i], of_type)
            printf "%s", of_type
        }
        kind = ""
        next
    }
    kind == "enum" && match($0, /[A-Z][A-Z_0-9]+/) { print "VALUE(" substr($0, RSTART, RLENGTH) ")" }
    kind == "struct" && match($0, /[A-Za-z_0-9]+(\[[0-9]+\])?;/) {
        field = substr($0, RSTART, RLENGTH)
        sub(/[[;].*/, "", field)
        rows = rows "FIELD(@, " field ")\n"
    }
    /^typedef struct [A-Za-z_0-9]+ \*/ { sub(/;.*/, ""); sub(/.*\*/, ""); print "TYPE(" $0 ")" }
    /^#define [A-Z_0-9]+ [0-9]/ { print "VALUE(" $2 ")" }
' "$ours" >"$work/facts.h"

cat >"$work/facts.c" <<'C'
#include <stddef.h>
#include <stdio.h>
#define VALUE(name) printf("%s = %lld\n", #name, (long long)(name));
#define TYPE(type) printf("%s: %zu bytes, aligned to %zu\n", #type, sizeof(type), _Alignof(type));
#define FIELD(type, field) \
    printf("%s.%s: %zu bytes at %zu\n", #type, #field, sizeof(((type *)0)->field), offsetof(type, field));
int main(void) {
#include "facts.h"
    return 0;
}
C

# A declaration that differs from theirs is an error of the compiler, and so is the address of what they do not have.
cat >"$work/prototypes.c" <<'C'
#include "driver/shadowed.h"
#define X(symbol, parameters) (void (*)(void)) & symbol,
void (*const known[])(void) = {NVML_SHADOWED(X) NVML_CALLED(X)};
#undef X
#define X(symbol, parameters) nvmlReturn_t symbol parameters;
NVML_SHADOWED(X)
NVML_CALLED(X)
C

compile() { # HEADER ARGUMENT...
    "$cc" -std=c11 -D_GNU_SOURCE -DNVML_NO_UNVERSIONED_FUNC_DEFS -Wall -Werror -Wno-deprecated-declarations -I intercept \
        -include "$@"
}

facts=$(wc -l <"$work/facts.h")
for header in "$theirs" "$ours"; do
    compile "$header" -o "$work/facts" "$work/facts.c"
    "$work/facts" >"$work/facts.$([ "$header" = "$ours" ] && echo ours || echo theirs)"
done
# Every structure and enumerator must have been seen, or the comparison is of nothing.
fields=$(grep -c '^FIELD' "$work/facts.h")
written=$(sed -n '/^typedef struct .* {/,/^}/p' "$ours" | grep -c ';')
closings=$(grep -c '^} .*;' <<<"$(sed -n '/^typedef struct .* {/,/^}/p' "$ours")")
if [ "$fields" -lt $((written - closings)) ]; then
    echo "nvml_headers: of $((written - closings)) fields in nvml_api.h, only $fields were understood" >&2
    exit 1
fi
if ! diff "$work/facts.theirs" "$work/facts.ours"; then
    echo "nvml_headers: intercept/driver/nvml_api.h (>) differs from $theirs (<)" >&2
    exit 1
fi
if ! compile "$theirs" -c -o "$work/prototypes.o" "$work/prototypes.c"; then
    echo "nvml_headers: intercept/driver/shadowed.h differs from $theirs" >&2
    exit 1
fi
echo "nvml_headers: $facts facts and $(nm "$work/prototypes.o" | grep -c ' U ') prototypes agree"
