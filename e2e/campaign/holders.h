/* Who holds locks on a file: those are the holders of memory that processes share. */
#ifndef CAMPAIGN_HOLDERS_H
#define CAMPAIGN_HOLDERS_H

#include <stdint.h>
#include <sys/types.h>

/* Tells each process and descriptor on whose description the byte is locked; see proc_pid_fdinfo(5). */
void holders_tell(const char *path, int64_t byte, void (*tell)(const char *format, ...));

/* Calls `each` with the first and last byte of each lock that the process has on the file. */
void holders_each_lock(const char *path, pid_t pid, void (*each)(int64_t first, int64_t last, void *argument),
                       void *argument);

#endif
