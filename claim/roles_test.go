package claim

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// What the test binary does as another process: the role, and the directories, come in its environment.
func playRole(role string) {
	l, err := Open(Options{StateDir: os.Getenv("TRANCHE_TEST_STATE"), RunDir: os.Getenv("TRANCHE_TEST_RUN")})
	if err != nil {
		fail(err)
	}
	switch role {
	case "reserver":
		reserveAtRandom(l, 60, os.Stdout)
	case "endless reserver":
		reserveAtRandom(l, 1<<30, os.Stdout)
	case "lock holder":
		if _, err := l.lock.Acquire(context.Background()); err != nil {
			fail(err)
		}
		fmt.Println("locked")
		select {}
	case "asker":
		askOnce(l)
	case "binder":
		bindWhenTold(l, os.Stdin, os.Stdout)
	case "group reserver":
		reserveGroups(l)
	case "churner":
		churnForEver(l)
	case "headless":
		loseFirstThread()
	default:
		fail(errors.New("no such role: " + role))
	}
}

func fail(err error) {
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// reserveAtRandom reserves slices that others want too, and drops some of them again.
func reserveAtRandom(l *Ledger, times int, report io.Writer) {
	ctx := context.Background()
	for range times {
		from := rand.IntN(30)
		c, token, err := l.Reserve(ctx, request(from, from+rand.IntN(4)))
		var held *HeldError
		if errors.As(err, &held) {
			continue // slices 30 to 33 belong to a living container
		}
		if err != nil {
			fail(err)
		}
		if _, err := l.Lookup(ctx, token); err != nil && !errors.Is(err, ErrUnknownToken) {
			fail(err)
		}
		if rand.IntN(4) == 0 {
			err := l.Drop(ctx, c.ID)
			if err != nil && !errors.Is(err, ErrUnknownClaim) {
				fail(err)
			}
		}
		fmt.Fprintln(report, c.ID)
	}
}

// churnForEver has containers come and die, one after the other, as churn does, for as long as it lives.
func churnForEver(l *Ledger) {
	runtime.LockOSThread() // whose end ends the containers
	ctx := context.Background()
	for round := 0; ; round++ {
		init := exec.Command("sleep", "1000")
		init.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		if err := init.Start(); err != nil {
			fail(err)
		}
		from := round * 5 % 26
		c, _, err := l.Reserve(ctx, request(from, from+round%4))
		if err == nil {
			err = l.Bind(ctx, c.ID, Container{Runtime: "runc", ID: "self", InitPID: init.Process.Pid})
		}
		_ = init.Process.Kill()
		_ = init.Wait()
		if err == nil {
			err = l.Release(ctx, c.ID, "self")
		}
		if err != nil {
			fail(err)
		}
		fmt.Println(round)
	}
}

// askOnce makes a claim when the others do, where there is room for it.
func askOnce(l *Ledger) {
	_, _ = io.Copy(io.Discard, os.Stdin) // which ends for all at once
	// Many wait for the lock, on a busy machine.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	c, err := l.ReserveFit(ctx, fitRequest(17<<29, gpuWith(0, 140), gpuWith(1, 140))) // nine slices
	var none *NoRoomError
	switch {
	case errors.As(err, &none):
		fmt.Println("no room")
	case err != nil:
		fail(err)
	default:
		fmt.Println(c.ID)
	}
}

// bindWhenTold binds a claim to this process as soon as it is told which, and says whether it got it.
func bindWhenTold(l *Ledger, orders io.Reader, report io.Writer) {
	for lines := bufio.NewScanner(orders); lines.Scan(); {
		err := l.Bind(context.Background(), lines.Text(), Container{Runtime: "runc", ID: "c", InitPID: os.Getpid()})
		var bound *BoundError
		switch {
		case err == nil:
			fmt.Fprintln(report, "got it")
		case errors.As(err, &bound):
			fmt.Fprintln(report, "another has it")
		default:
			fail(err)
		}
	}
}

// loseFirstThread ends the process's first thread and lives on with the others.
func loseFirstThread() {
	runtime.LockOSThread() // main runs on the first thread, and init has kept it there
	go func() {
		fmt.Println("headless")
		select {}
	}()
	_, _, _ = syscall.RawSyscall(syscall.SYS_EXIT, 0, 0, 0)
}

func init() {
	if os.Getenv("TRANCHE_TEST_ROLE") == "headless" {
		runtime.LockOSThread()
	}
}
