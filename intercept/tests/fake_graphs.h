/* Graphs of the driver in fake_driver.c: each is one allocation on device 0. */
#ifndef TRANCHE_TESTS_FAKE_GRAPHS_H
#define TRANCHE_TESTS_FAKE_GRAPHS_H

#include "fake_driver.h"

CUgraph fake_graph_new(size_t bytes);

void *fake_graphs_lookup(const char *name);

#endif
