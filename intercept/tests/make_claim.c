/* Writes a claim's region, for test scripts: make_claim DIRECTORY ID GPU-UUID LIMIT-MIB CONTEXT-MIB */
#include "fixture.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    if (argc != 6) {
        fprintf(stderr, "usage: %s DIRECTORY ID GPU-UUID LIMIT-MIB CONTEXT-MIB\n", argv[0]);
        return 2;
    }
    fixture_claim(argv[1], argv[2], argv[3], strtoull(argv[4], NULL, 10) << 20, strtoull(argv[5], NULL, 10) << 20);
    return 0;
}
