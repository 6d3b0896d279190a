/* The driver's functions, and the clock that runs while they are called. */
#ifndef CAMPAIGN_CALLS_H
#define CAMPAIGN_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct call;

/* Loads the driver, or what stands in front of it, and looks up what the families call: by dlsym or cuGetProcAddress. */
bool calls_load(bool by_addresses, char *why, size_t size);
void *calls_find(const char *symbol);
bool calls_has(const char *symbol, size_t length);

/* Before the operation's first call. */
void calls_begin(struct call *call);

uint64_t calls_not_running_ns(void);

struct board;
/* Somebody was ready to run without a processor for so long. */
void calls_note_unscheduled(struct board *of, uint64_t ns);

#endif
