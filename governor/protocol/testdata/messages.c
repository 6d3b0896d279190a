/* Writes a message of each kind and a page, to compare with what package protocol and package page make of them. */
#include "governor/page.h"
#include "governor/protocol.h"

#include <stdio.h>
#include <string.h>

int main(void) {
    for (uint16_t kind = GOVERNOR_HELLO; kind <= GOVERNOR_REFUSED; kind++) {
        struct governor_hello hello = {.message = {.version = GOVERNOR_VERSION,
                                                   .kind = kind,
                                                   .gpu = 2,
                                                   .turn = (UINT64_C(1) << 40) + 1,
                                                   .flags = (UINT64_C(1) << 40) + 2,
                                                   .value = {3, 4, 5, 6, (UINT64_C(1) << 40) + 7}}};
        memcpy(hello.uuid[0], "GPU-a", 5);
        memset(hello.uuid[1], 'x', GOVERNOR_UUID_SIZE);
        fwrite(&hello, kind == GOVERNOR_HELLO ? sizeof hello.message + 2 * GOVERNOR_UUID_SIZE : sizeof hello.message, 1,
               stdout);
    }
    static union {
        struct governor_page page;
        char bytes[GOVERNOR_PAGE_SIZE];
    } room;
    room.page.gate = GATE_CLOSED;
    room.page.heartbeat = (UINT64_C(1) << 40) + 1;
    for (unsigned gpu = 0; gpu < GOVERNOR_GPUS_MAX; gpu++) {
        static const uint32_t states[] = {GATE_OPEN, GATE_METERED, GATE_CLOSED};
        struct governor_gpu *of = &room.page.gpus[gpu];
        of->state = states[gpu % 3];
        of->turn = gpu + 10;
        of->meter_ns = gpu + 20;
        of->turn_end = gpu + 30;
        of->switch_ns = gpu + 40;
    }
    fwrite(room.bytes, sizeof room.bytes, 1, stdout);
    return 0;
}
