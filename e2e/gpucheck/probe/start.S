/*
 * Where the program begins. The compiler's own start files ask for the newest __libc_start_main, which only the newest
 * glibc has; this one asks for the oldest, which all have.
 */
    .text
    .globl _start
    .type _start, %function
#if defined(__x86_64__)
    .symver __libc_start_main, __libc_start_main@GLIBC_2.2.5
_start:
    xor %ebp, %ebp
    mov %rdx, %r9
    pop %rsi
    mov %rsp, %rdx
    and $-16, %rsp
    push %rax
    push %rsp
    xor %r8d, %r8d
    xor %ecx, %ecx
    lea main(%rip), %rdi
    call *__libc_start_main@GOTPCREL(%rip)
    hlt
#elif defined(__aarch64__)
    .symver __libc_start_main, __libc_start_main@GLIBC_2.17
_start:
    mov x29, #0
    mov x30, #0
    mov x5, x0
    ldr x1, [sp]
    add x2, sp, #8
    mov x6, sp
    adrp x0, main
    add x0, x0, :lo12:main
    mov x3, #0
    mov x4, #0
    bl __libc_start_main
    brk #0
#else
#error "how does a program begin on this architecture?"
#endif
    .size _start, .-_start
    .section .note.GNU-stack, "", %progbits
