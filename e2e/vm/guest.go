package vm

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// guest speaks with QEMU's guest agent in a machine: one JSON object per line, in each direction. It is for one caller at a time.
type guest struct {
	conn  net.Conn
	lines *bufio.Reader
	// answers is whether no answer to an earlier command may still come.
	answers bool
}

func newGuest(conn net.Conn) *guest { return &guest{conn: conn, lines: bufio.NewReader(conn)} }

func (g *guest) close() { g.conn.Close() }

// wait blocks until the agent answers, which it does soon after systemd has started it, and has answered everything before. What was
// sent before may be lost.
func (g *guest) wait(ctx context.Context) error {
	for id := int(time.Now().UnixMilli()); ; id++ {
		err := g.sync(ctx, id)
		switch {
		case err == nil:
			g.answers = true
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("the guest agent does not answer: %w", ctx.Err())
		case errors.Is(err, io.EOF) || errors.Is(err, unix.EPIPE) || errors.Is(err, net.ErrClosed):
			return err // the machine is off
		}
	}
}

// sync sends a number, which the agent sends back, and waits for it for two seconds.
func (g *guest) sync(ctx context.Context, id int) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var raw json.RawMessage
	err := g.call(ctx, "guest-sync", map[string]any{"id": id}, &raw)
	for err == nil && string(raw) != strconv.Itoa(id) { // to an earlier command
		err = timedOut(ctx, "guest-sync", g.receive(ctx, &raw))
	}
	return err
}

// call sends a command and stores what the agent returns.
func (g *guest) call(ctx context.Context, command string, arguments, result any) error {
	message, err := json.Marshal(map[string]any{"execute": command, "arguments": arguments})
	if err != nil {
		return err
	}
	deadline, _ := ctx.Deadline()
	if err := g.conn.SetDeadline(deadline); err != nil {
		return err
	}
	g.answers = false
	if _, err := g.conn.Write(append(message, '\n')); err != nil {
		return timedOut(ctx, command, err)
	}
	err = g.receive(ctx, result)
	g.answers = err == nil
	return timedOut(ctx, command, err)
}

func (g *guest) receive(ctx context.Context, result any) error {
	deadline, _ := ctx.Deadline()
	if err := g.conn.SetDeadline(deadline); err != nil {
		return err
	}
	line, err := g.lines.ReadBytes('\n')
	if err != nil {
		return err
	}
	var answer struct {
		Return json.RawMessage `json:"return"`
		Error  struct {
			Description string `json:"desc"`
		} `json:"error"`
	}
	if err := json.Unmarshal(line, &answer); err != nil {
		return fmt.Errorf("%w: %s", err, line)
	}
	if answer.Error.Description != "" {
		return errors.New(answer.Error.Description)
	}
	return json.Unmarshal(answer.Return, result)
}

func timedOut(ctx context.Context, command string, err error) error {
	var timeout net.Error
	switch {
	case err == nil:
		return nil
	case errors.As(err, &timeout) && timeout.Timeout():
		return fmt.Errorf("guest agent, %s: %w", command, context.DeadlineExceeded)
	case ctx.Err() != nil:
		err = ctx.Err()
	}
	return fmt.Errorf("guest agent, %s: %w", command, err)
}

// status is the agent's answer to guest-exec-status.
type status struct {
	Exited   bool   `json:"exited"`
	ExitCode int    `json:"exitcode"`
	Signal   int    `json:"signal"`
	Out      []byte `json:"out-data"`
	Err      []byte `json:"err-data"`
}

// exec runs a shell script with an input and returns its standard output. The agent has no event for a command's end.
func (g *guest) exec(ctx context.Context, script string, input []byte) (string, error) {
	if !g.answers {
		if err := g.wait(ctx); err != nil {
			return "", err
		}
	}
	var started struct {
		PID int `json:"pid"`
	}
	if err := g.call(ctx, "guest-exec", map[string]any{
		"path": "/bin/bash", "arg": []string{"-ec", script}, "input-data": append([]byte{}, input...), "capture-output": true,
		"env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "DEBIAN_FRONTEND=noninteractive"},
	}, &started); err != nil {
		return "", err
	}
	for {
		var s status
		if err := g.call(ctx, "guest-exec-status", map[string]any{"pid": started.PID}, &s); err != nil {
			return "", fmt.Errorf("run %q: %w", script, err)
		}
		switch {
		case s.Exited && s.ExitCode == 0 && s.Signal == 0:
			return string(s.Out), nil
		case s.Exited:
			return string(s.Out), fmt.Errorf("run %q: status %d, signal %d: %s%s", script, s.ExitCode, s.Signal, s.Out, s.Err)
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("run %q: %w", script, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
}
