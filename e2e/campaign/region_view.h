/* The regions of the claims, as the host sees them. */
#ifndef CAMPAIGN_REGION_VIEW_H
#define CAMPAIGN_REGION_VIEW_H

#include <stdbool.h>
#include <stdint.h>

#include "board.h"

/* By number: the claims on the GPUs, and then those of the crowd. */
enum { REGION_VIEWS = GPUS + CROWD_CLAIMS };

bool region_view_make(int view, const char *directory, const char *id, const char *uuid, uint64_t limit_bytes,
                      uint64_t context_bytes);
void region_view_close(void);

/* What is counted, without a look for the dead: 0 where there is no claim. */
uint64_t region_view_counted(int view);
/* The same after a look for the dead. */
uint64_t region_view_counted_alive(int view);

/* Takes note of what each slot holds; and tells of those that hold anything. */
void region_view_look(int view);
void region_view_tell(int view, void (*tell)(const char *format, ...));

#endif
