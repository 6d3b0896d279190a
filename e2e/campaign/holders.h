/* Who holds a lock on a byte of a file: of use where something is held that nobody should hold. */
#ifndef CAMPAIGN_HOLDERS_H
#define CAMPAIGN_HOLDERS_H

#include <stdint.h>

/* Tells each process and descriptor on whose description the byte is locked; see proc_pid_fdinfo(5). */
void holders_tell(const char *path, int64_t byte, void (*tell)(const char *format, ...));

#endif
