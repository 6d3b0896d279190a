/* The table of all operations. */
#include "family.h"

#include <stddef.h>
#include <string.h>

extern const struct family family_context, family_detach, family_linear, family_query, family_bad, family_stream,
    family_host, family_pool, family_graph, family_array, family_module, family_limit, family_vmm, family_ipc,
    family_green, family_crowd, family_crowd_pool, family_crowd_context, family_crowd_graph, family_crowd_share,
    family_crowd_image, family_crowd_vmm, family_crowd_race;

const struct family *const families[] = {
    &family_context,     &family_detach,        &family_linear,      &family_host,
    &family_query,       &family_bad,           &family_stream,      &family_pool,
    &family_graph,       &family_array,         &family_module,      &family_limit,
    &family_vmm,         &family_ipc,           &family_green,       &family_crowd,
    &family_crowd_pool,  &family_crowd_context, &family_crowd_graph, &family_crowd_share,
    &family_crowd_image, &family_crowd_vmm,     &family_crowd_race,  NULL};

bool is_of_crowd(unsigned index) {
    return strncmp(family_of(index)->name, "crowd", 5) == 0;
}

const struct operation *operation_at(unsigned index) {
    for (unsigned f = 0; families[f] != NULL; f++)
        for (const struct operation *operation = families[f]->operations; operation->name != NULL; operation++)
            if (index-- == 0)
                return operation;
    return NULL;
}

const struct family *family_of(unsigned index) {
    for (unsigned f = 0; families[f] != NULL; f++)
        for (const struct operation *operation = families[f]->operations; operation->name != NULL; operation++)
            if (index-- == 0)
                return families[f];
    return NULL;
}

unsigned operations_count(void) {
    unsigned count = 0;
    while (operation_at(count) != NULL)
        count++;
    return count;
}
