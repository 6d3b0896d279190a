/* The binary that a simulated driver root holds as usr/bin/nvidia-smi. */
#include <stdio.h>
#include <string.h>

#include "smi.h"

#define QUERY "--query-gpu="
#define FORMAT "--format="

static int usage(void) {
    fputs("usage: nvidia-smi [-L | " QUERY "FIELD,... [" FORMAT "csv[,noheader][,nounits]] |\n"
          "                   [-i GPU] -mig 0|1 | mig [-i GPU] -lgip|-lgipp|-lgi|-lci|-cgi PROFILE[:START],... [-C]|\n"
          "                   -cci [-gi ID]|-dci [-gi ID]|-dgi [-gi ID] |\n"
          "                   memory-limits --set -n CGROUP --soft-limit MIB --hard-limit MIB [-i GPU] |\n"
          "                   memory-limits --get -n CGROUP [-i GPU]]   (SIMULATED)\n",
          stderr);
    return 2;
}

int main(int argc, char **argv) {
    const char *fields = NULL, *format = "csv";

    if (argc == 1)
        return simgpu_smi(stdout);
    if (argc == 2 && (strcmp(argv[1], "-L") == 0 || strcmp(argv[1], "--list-gpus") == 0))
        return simgpu_smi_list(stdout);
    if (strcmp(argv[1], "mig") == 0)
        return simgpu_smi_mig(stdout, argc - 2, argv + 2);
    if (strcmp(argv[1], "memory-limits") == 0)
        return simgpu_smi_memory_limits(stdout, argc - 2, argv + 2);
    if (argc == 3 && strcmp(argv[1], "-mig") == 0)
        return simgpu_smi_mig_mode(stdout, NULL, argv[2]);
    if (argc == 5 && strcmp(argv[1], "-i") == 0 && strcmp(argv[3], "-mig") == 0)
        return simgpu_smi_mig_mode(stdout, argv[2], argv[4]);
    for (int i = 1; i < argc; i++) {
        if (strncmp(argv[i], QUERY, strlen(QUERY)) == 0)
            fields = argv[i] + strlen(QUERY);
        else if (strncmp(argv[i], FORMAT, strlen(FORMAT)) == 0)
            format = argv[i] + strlen(FORMAT);
        else
            return usage();
    }
    if (fields == NULL || strncmp(format, "csv", 3) != 0)
        return usage();
    return simgpu_smi_query(stdout, fields, strstr(format, "noheader") == NULL, strstr(format, "nounits") == NULL);
}
