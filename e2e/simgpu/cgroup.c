#include "cgroup.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/bpf.h>
#include <linux/magic.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

/* The kernel gives the root of the hierarchy the ID 1. */
#define ROOT_ID 1
/* An option of sockets that no kernel has: the query. */
#define QUERY 0x73696d67

/* Of a file handle that names a node of cgroup v2 by its ID (include/linux/exportfs.h: FILEID_KERNFS). */
#define FILEID_KERNFS 0xfe

int cgroup_id(int fd, uint64_t *id) {
    struct statfs fs;
    struct stat info;

    if (fstatfs(fd, &fs) != 0 || fstat(fd, &info) != 0 || fs.f_type != CGROUP2_SUPER_MAGIC || !S_ISDIR(info.st_mode))
        return -EINVAL;
    *id = info.st_ino;
    return info.st_ino == ROOT_ID ? -EOPNOTSUPP : 0;
}

int cgroup_path_ids(int fd, uint64_t ids[CGROUP_DEPTH]) {
    int count = 0, at = dup(fd), above;

    while (at >= 0 && count < CGROUP_DEPTH && cgroup_id(at, &ids[count]) == 0) {
        count++;
        above = openat(at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        close(at);
        at = above;
    }
    if (at >= 0)
        close(at);
    return count;
}

/* Whether a directory of cgroup v2 has the controller among those that it may hand down. */
static bool has_controller(int fd, const char *controller) {
    char names[1024] = " ", word[32];
    int file = openat(fd, "cgroup.controllers", O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : read(file, names + 1, sizeof(names) - 3);

    if (file >= 0)
        close(file);
    if (length <= 0)
        return false;
    names[length] = names[length + 1] = ' '; /* in place of the line's end */
    snprintf(word, sizeof(word), " %s ", controller);
    return strstr(names, word) != NULL;
}

/* The topmost directory that the mount shows. */
static int topmost(int fd) {
    int at = dup(fd), above;
    uint64_t id;

    while (at >= 0 && (above = openat(at, "..", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0) {
        int known = cgroup_id(above, &id);
        struct stat here, there;
        bool same = fstat(at, &here) == 0 && fstat(above, &there) == 0 && here.st_ino == there.st_ino;

        if (same || (known != 0 && known != -EOPNOTSUPP)) {
            close(above);
            break;
        }
        close(at);
        at = above;
    }
    return at;
}

bool cgroup_found(int fd) {
    int top = topmost(fd);
    bool available = top >= 0 && has_controller(top, "misc");

    if (top >= 0)
        close(top);
    return !available || faccessat(fd, "misc.current", F_OK, 0) == 0;
}

bool cgroup_exists(int fd, uint64_t id) {
    struct {
        struct file_handle handle;
        uint64_t id;
    } name = {.handle = {.handle_bytes = sizeof(id), .handle_type = FILEID_KERNFS}};
    int found;

    memcpy(name.handle.f_handle, &id, sizeof(id));
    found = open_by_handle_at(fd, &name.handle, O_PATH | O_CLOEXEC);
    if (found >= 0)
        close(found);
    /* Who may not look does not know. */
    return found >= 0 || errno != ESTALE;
}

/* ---- The program ---- */

#define INSN(c, d, s, o, i)                                                                                            \
    ((struct bpf_insn){.code = (c), .dst_reg = (d), .src_reg = (s), .off = (o), .imm = (int)(i)})
#define MOV(d, s) INSN(BPF_ALU64 | BPF_MOV | BPF_X, d, s, 0, 0)
#define MOV_NUMBER(d, i) INSN(BPF_ALU64 | BPF_MOV | BPF_K, d, 0, 0, i)
#define ADD(d, s) INSN(BPF_ALU64 | BPF_ADD | BPF_X, d, s, 0, 0)
#define ADD_NUMBER(d, i) INSN(BPF_ALU64 | BPF_ADD | BPF_K, d, 0, 0, i)
#define SHIFT_LEFT(d, i) INSN(BPF_ALU64 | BPF_LSH | BPF_K, d, 0, 0, i)
#define LOAD32(d, s, o) INSN(BPF_LDX | BPF_MEM | BPF_W, d, s, o, 0)
#define LOAD64(d, s, o) INSN(BPF_LDX | BPF_MEM | BPF_DW, d, s, o, 0)
#define STORE32(d, s, o) INSN(BPF_STX | BPF_MEM | BPF_W, d, s, o, 0)
#define STORE64(d, s, o) INSN(BPF_STX | BPF_MEM | BPF_DW, d, s, o, 0)
#define UNLESS_EQUAL(d, i, o) INSN(BPF_JMP | BPF_JNE | BPF_K, d, 0, o, i)
#define IF_ABOVE(d, s, o) INSN(BPF_JMP | BPF_JGT | BPF_X, d, s, o, 0)
#define IF_ABOVE_NUMBER(d, i, o) INSN(BPF_JMP | BPF_JGT | BPF_K, d, 0, o, i)
#define FIELD(name) offsetof(struct bpf_sockopt, name)
#define ANSWER(name) offsetof(struct cgroup_marks, name)

#define IF_EQUAL(d, s, o) INSN(BPF_JMP | BPF_JEQ | BPF_X, d, s, o, 0)

enum { LENGTH = 34 };

/* To the last two instructions, from the one at this place. */
#define PASS(at) (LENGTH - 3 - (at))

/* Appends the cgroup to the answer, once. The kernel runs the programs of the innermost cgroup first. */
static void write_program(struct bpf_insn program[LENGTH], uint64_t id) {
    const struct bpf_insn insns[LENGTH] = {
        MOV(6, 1),
        LOAD32(7, 6, FIELD(level)),
        UNLESS_EQUAL(7, SOL_SOCKET, PASS(2)),
        LOAD32(7, 6, FIELD(optname)),
        UNLESS_EQUAL(7, QUERY, PASS(4)),
        LOAD64(8, 6, FIELD(optval)),
        LOAD64(9, 6, FIELD(optval_end)),
        MOV(1, 8),
        ADD_NUMBER(1, sizeof(struct cgroup_marks)),
        IF_ABOVE(1, 9, PASS(9)),
        LOAD64(7, 8, ANSWER(count)),
        IF_ABOVE_NUMBER(7, CGROUP_MARKS - 1, PASS(11)),
        SHIFT_LEFT(7, 3),
        MOV(1, 8),
        ADD(1, 7),
        MOV(2, 1),
        ADD_NUMBER(2, ANSWER(ids) + sizeof(uint64_t)),
        IF_ABOVE(2, 9, PASS(17)),
        INSN(BPF_LD | BPF_IMM | BPF_DW, 2, 0, 0, id),
        INSN(0, 0, 0, 0, id >> 32),
        LOAD64(7, 1, ANSWER(ids) - sizeof(uint64_t)), /* the one before */
        IF_EQUAL(7, 2, PASS(21)),
        STORE64(1, 2, ANSWER(ids)),
        LOAD64(7, 8, ANSWER(count)),
        ADD_NUMBER(7, 1),
        STORE64(8, 7, ANSWER(count)),
        INSN(BPF_JMP | BPF_CALL, 0, 0, 0, BPF_FUNC_get_current_cgroup_id),
        STORE64(8, 0, ANSWER(own)),
        MOV_NUMBER(7, sizeof(struct cgroup_marks)),
        STORE32(6, 7, FIELD(optlen)),
        MOV_NUMBER(7, 0),
        STORE32(6, 7, FIELD(retval)),
        MOV_NUMBER(0, 1),
        INSN(BPF_JMP | BPF_EXIT, 0, 0, 0, 0),
    };

    memcpy(program, insns, sizeof(insns));
}

static int bpf(enum bpf_cmd command, union bpf_attr *attr) {
    int ret = (int)syscall(SYS_bpf, command, attr, sizeof(*attr));

    return ret >= 0 ? ret : errno == EPERM || errno == E2BIG ? -errno : -EOPNOTSUPP;
}

int cgroup_mark(int fd, uint64_t id) {
    struct bpf_insn program[LENGTH];
    union bpf_attr attr;
    int loaded, ret;

    write_program(program, id);
    memset(&attr, 0, sizeof(attr));
    attr.prog_type = BPF_PROG_TYPE_CGROUP_SOCKOPT;
    attr.expected_attach_type = BPF_CGROUP_GETSOCKOPT;
    attr.insns = (uint64_t)(uintptr_t)program;
    attr.insn_cnt = LENGTH;
    attr.license = (uint64_t)(uintptr_t) "";
    loaded = bpf(BPF_PROG_LOAD, &attr);
    if (loaded < 0)
        return loaded;
    memset(&attr, 0, sizeof(attr));
    attr.target_fd = (uint32_t)fd;
    attr.attach_bpf_fd = (uint32_t)loaded;
    attr.attach_type = BPF_CGROUP_GETSOCKOPT;
    attr.attach_flags = BPF_F_ALLOW_MULTI;
    ret = bpf(BPF_PROG_ATTACH, &attr);
    close(loaded);
    /* A cgroup has room for 64, and these are all the same. */
    return ret == -E2BIG ? 0 : ret;
}

/* A socket is in the cgroup in which it was made, so each query has one of its own. */
int cgroup_marked(struct cgroup_marks *marks) {
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0), ret = 0;
    socklen_t size = sizeof(*marks);

    *marks = (struct cgroup_marks){0};
    if (fd < 0)
        return -errno;
    /* ENOPROTOOPT: it is in none. */
    if (getsockopt(fd, SOL_SOCKET, QUERY, marks, &size) != 0 && errno != ENOPROTOOPT)
        ret = -errno;
    close(fd);
    return ret;
}
