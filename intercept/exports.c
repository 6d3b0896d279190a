#include "exports.h"

#include "calls.h"
#include "objects.h"
#include "tags.h"

#include <errno.h>

static bool read_status(int descriptor, struct stat *file) {
    int error = errno;
    bool done = call_fstat(descriptor, file);
    errno = error;
    return done;
}

/* The witness is only good while it is still ours: the program may have closed it, and something else have its number. */
static bool is_witness(const struct witness *witness) {
    struct stat file;
    return witness->file.inode != 0 && read_status(witness->descriptor, &file) &&
           (uint64_t)file.st_dev == witness->file.device && (uint64_t)file.st_ino == witness->file.inode;
}

/* Under the lock of exports. */
static bool watch(struct witness *witness, int descriptor) {
    struct stat file;
    if (!read_status(descriptor, &file))
        return false;
    if (is_witness(witness))
        return (uint64_t)file.st_dev == witness->file.device && (uint64_t)file.st_ino == witness->file.inode;
    int opened = tag_open_witness(descriptor);
    if (opened < 0)
        return false;
    witness->descriptor = opened;
    witness->file.device = (uint64_t)file.st_dev;
    witness->file.inode = (uint64_t)file.st_ino;
    return true;
}

void exports_made(struct process *process, int descriptor, uint32_t number) {
    tag_write(descriptor, number);
    lock_take(&process->exported.lock);
    if (!watch(&process->exported.witness, descriptor))
        process->exported.unseen = true; /* then what is exported is charged as long as this process lives */
    lock_give(&process->exported.lock);
}

/* Under the lock of exports. */
static bool may_live(struct process *process, uint32_t number) {
    const struct exported *exported = &process->exported;
    return exported->unseen || !is_witness(&exported->witness) || tag_is_alive(exported->witness.descriptor, number);
}

void exports_end(struct process *process, const struct charge *charge, uint32_t number) {
    lock_take(&process->exported.lock);
    bool waits = number != 0 && charge->share != 0 && may_live(process, number) &&
                 objects_put(process, KIND_EXPORTED,
                             (struct entry){.key = (uint64_t)charge->region << 32 | charge->share,
                                            .charge = *charge,
                                            .references = number});
    lock_give(&process->exported.lock);
    if (!waits)
        charge_end(process, charge);
}

bool exports_settle(struct process *process) {
    struct entry entry, gone;
    bool any = false;
    if (!objects_any(process, KIND_EXPORTED))
        return false;
    lock_take(&process->exported.lock);
    for (size_t at = 0; objects_copy(process, KIND_EXPORTED, at, &entry, 1) != 0;) {
        if (may_live(process, entry.references) || !objects_remove(process, KIND_EXPORTED, entry.key, &gone)) {
            at++;
            continue;
        }
        charge_end(process, &gone.charge);
        any = true;
    }
    lock_give(&process->exported.lock);
    return any;
}
