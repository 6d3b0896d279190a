/* The regions of the claims, as the host sees them. */
#ifndef CAMPAIGN_REGION_VIEW_H
#define CAMPAIGN_REGION_VIEW_H

#include <stdbool.h>
#include <stdint.h>

bool region_view_make(int gpu, const char *directory, const char *id, const char *uuid, uint64_t limit_bytes,
                      uint64_t context_bytes);
void region_view_close(void);

/* What is counted, without a look for the dead: 0 for a GPU without a claim. */
uint64_t region_view_counted(int gpu);
/* The same after a look for the dead. */
uint64_t region_view_counted_alive(int gpu);

/* Takes note of what each slot holds; and tells of those that hold anything. */
void region_view_look(int gpu);
void region_view_tell(int gpu, void (*tell)(const char *format, ...));

#endif
