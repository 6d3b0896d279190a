/* A worker process: it sits at a seat of the board, its threads at the desks. */
#ifndef CAMPAIGN_WORKER_H
#define CAMPAIGN_WORKER_H

#include <pthread.h>

#include "board.h"

extern struct board *board;
extern struct seat *my_seat;

/* `campaign worker SEAT`: takes orders until it is told to end. */
int worker_main(unsigned seat);
/* `campaign probe`: notes on the board which operations the driver has functions for. */
int probe_main(void);

/* Which GPU of the board a CUDA device is, or -1. */
int gpu_of_device(int device);
int device_count(void);
/* Those with a claim, by bit. */
uint32_t visible_gpus(void);

/* Held for reading by whoever has a copy of another process's descriptor, for writing by whoever forks: a child would keep the copy
 * when its parent's thread has long closed it. */
extern pthread_rwlock_t copies_lock;

/* In life.c: what processes and threads do with themselves. */
void life_thread(unsigned desk);
void life_fork(struct desk *desk, unsigned seat);
void life_exec(void);

/* What a child that was forked has to do before anything else: nothing of its parent's threads and objects is left. It ends if
 * the seat is not this ticket's any more. */
void worker_forked(unsigned seat, uint32_t ticket);
/* And when its seat is prepared. */
void worker_seated(void);
void worker_serve(unsigned desk) __attribute__((noreturn));
void *worker_thread(void *desk);
struct board *board_map(const char *path);

#endif
