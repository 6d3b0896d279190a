/* MIG in the record. */
#ifndef SIMGPU_RECORD_MIG_H
#define SIMGPU_RECORD_MIG_H

#include "json.h"

/* "mig": {"gpus": […modes and instances…], "events": […]}, inside an open object. */
void mig_json(struct json *json);
void mig_text(void);

#endif
