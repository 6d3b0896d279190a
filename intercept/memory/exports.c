#include "memory/exports.h"

#include "memory/objects.h"
#include "memory/tags.h"
#include "system/calls.h"

#include <errno.h>

static bool read_status(int descriptor, struct stat *file) {
    int error = errno;
    bool done = call_fstat(descriptor, file);
    errno = error;
    return done;
}

/* Whether the witness is still that file: the program may have closed it and reused its number. */
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

static uint64_t bit_of(uint32_t number) {
    return UINT64_C(1) << (number - 1);
}

/* An export with this number may live on in a process that imported it, or on a descriptor of the program that this
 * process was before exec: then the tag must not be used again. */
static bool is_free(struct process *process, uint32_t number, uint8_t tag[static TAG_SIZE]) {
    const struct witness *witness = &process->exported.witness;
    struct charge living;
    tag_of_number(number, tag);
    if ((process->exported.numbers & bit_of(number)) != 0 ||
        (is_witness(witness) && tag_is_alive(witness->descriptor, number)))
        return false;
    bool known = charge_find(process, tag, &living) == CUDA_SUCCESS, lives = living.share != 0;
    if (lives)
        charge_end(process, &living);
    return known && !lives;
}

/* Under the lock of exports. */
static uint32_t take_number(struct process *process, uint8_t tag[static TAG_SIZE]) {
    for (uint32_t number = 1; number <= TAG_NUMBERS; number++) {
        if (!is_free(process, number, tag))
            continue;
        process->exported.numbers |= bit_of(number);
        return number;
    }
    return 0;
}

/* Under the lock of exports. */
static void give_number(struct process *process, uint32_t number) {
    struct charge *name = &process->exported.names[number - 1];
    if (name->share != 0)
        charge_end(process, name);
    *name = (struct charge){0};
    process->exported.numbers &= ~bit_of(number);
}

/* Under the lock of exports. */
static bool make_known(struct process *process, struct charge *charge, const uint8_t tag[static TAG_SIZE],
                       struct charge *name) {
    return charge->share == 0 ? charge_share(process, charge, tag) : charge_name(process, charge, tag, name);
}

uint32_t exports_share(struct process *process, struct charge *charge) {
    uint8_t tag[TAG_SIZE];
    exports_settle(process);
    lock_take(&process->exported.lock);
    uint32_t number = take_number(process, tag);
    if (number != 0 && !make_known(process, charge, tag, &process->exported.names[number - 1])) {
        give_number(process, number);
        number = 0;
    }
    lock_give(&process->exported.lock);
    return number != 0 ? number : EXPORTS_UNTRACKED;
}

void exports_mark(struct process *process, int descriptor, uint32_t number) {
    if (number != EXPORTS_UNTRACKED && !tag_write(descriptor, number))
        atomic_store(&process->exported.untracked, true);
}

void exports_see(struct process *process, int descriptor) {
    lock_take(&process->exported.lock);
    if (!watch(&process->exported.witness, descriptor))
        process->exported.untracked = true; /* then all exports stay charged while this process lives */
    lock_give(&process->exported.lock);
}

/* Under the lock of exports. */
static bool may_live(struct process *process, uint32_t number) {
    const struct exported *exported = &process->exported;
    return exported->untracked || !is_witness(&exported->witness) || tag_is_alive(exported->witness.descriptor, number);
}

void exports_end(struct process *process, const struct charge *charge, uint32_t number) {
    if (number == 0) {
        charge_end(process, charge);
        return;
    }
    if (number == EXPORTS_UNTRACKED)
        return;
    lock_take(&process->exported.lock);
    if (may_live(process, number)) {
        /* Without memory for the record, it stays charged until this process ends. */
        objects_put(process, KIND_EXPORTED, (struct entry){.key = number, .charge = *charge});
    } else {
        charge_end(process, charge);
        give_number(process, number);
    }
    lock_give(&process->exported.lock);
}

bool exports_settle(struct process *process) {
    struct entry entry, gone;
    bool any = false;
    if (!process_has(process, KIND_EXPORTED))
        return false;
    lock_take(&process->exported.lock);
    for (size_t at = 0; objects_next(process, KIND_EXPORTED, &at, &entry);) {
        if (may_live(process, (uint32_t)entry.key) || !objects_remove(process, KIND_EXPORTED, entry.key, &gone))
            continue;
        at--; /* another one may be in its place */
        charge_end(process, &gone.charge);
        give_number(process, (uint32_t)gone.key);
        any = true;
    }
    lock_give(&process->exported.lock);
    return any;
}
