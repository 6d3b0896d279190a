/* Orders a fault of the simulated node: xid GPU NUMBER, lost GPU 0|1, absent 0|1. */
#include <stdlib.h>
#include <string.h>

#include "state.h"

int main(int argc, char **argv) {
    if (argc < 3 || sim_open_all() != 0)
        return 1;
    if (strcmp(argv[1], "absent") == 0)
        sim_fault_nvml_absent(atoi(argv[2]) != 0);
    else if (argc == 4 && strcmp(argv[1], "xid") == 0)
        return sim_fault_xid(atoi(argv[2]), strtoull(argv[3], NULL, 10)) != 0;
    else if (argc == 4 && strcmp(argv[1], "lost") == 0)
        return sim_fault_lost(atoi(argv[2]), atoi(argv[3]) != 0) != 0;
    else
        return 1;
    return 0;
}
