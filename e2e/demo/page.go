package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	// pageFD is where the inner demo finds a socket that listens outside the sandbox, whose network is its own.
	pageFD = storyFD + 1
	// pageAddress is where the agent's pages are if nothing else is there.
	pageAddress = "127.0.0.1:9760"
)

// listenOutside opens the socket for the agent's pages.
func listenOutside() (*os.File, error) {
	l, err := net.Listen("tcp", pageAddress)
	if err != nil {
		l, err = net.Listen("tcp", "127.0.0.1:0")
	}
	if err != nil {
		return nil, err
	}
	defer l.Close()
	return l.(*net.TCPListener).File()
}

// servePages starts the agent, and passes what comes in outside the sandbox on to it until the context ends. It returns the
// address outside.
func (d *demonstration) servePages(ctx context.Context) (string, error) {
	unix.CloseOnExec(pageFD)
	outside, err := net.FileListener(os.NewFile(pageFD, "pages"))
	if err != nil {
		return "", fmt.Errorf("the socket for the agent's pages: %w", err)
	}
	inside, err := d.startAgent(ctx)
	if err != nil {
		return "", err
	}
	context.AfterFunc(ctx, func() { _ = outside.Close() })
	go func() {
		for {
			client, err := outside.Accept()
			if err != nil {
				return
			}
			go pass(client, inside)
		}
	}()
	return "http://" + outside.Addr().String() + "/", nil
}

// startAgent starts the agent of the demo's node and returns where it listens. It ends with the sandbox.
func (d *demonstration) startAgent(ctx context.Context) (address string, err error) {
	config := d.place("node/agent.toml")
	if err := os.WriteFile(config, fmt.Appendf(nil, "nomad_address = %q\n", d.node.Agent.Address), 0o644); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, filepath.Join(d.build, "bin/tranche"), "agent", "--listen", "127.0.0.1:0",
		"--state-dir", d.node.StateDir(), "--run-dir", d.node.RunDir(), "--driver-root", d.node.DriverRoot())
	cmd.Env = append(os.Environ(), "TRANCHE_CONFIG="+config)
	if d.node.Sim != nil {
		cmd.Env = append(cmd.Env, d.node.Sim.Env()...)
	}
	log, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return "", fmt.Errorf("start the agent: %w", err)
	}
	for lines := bufio.NewScanner(log); lines.Scan(); {
		if _, url, ok := strings.Cut(lines.Text(), "listening: address=http://"); ok {
			go func() { _, _ = io.Copy(io.Discard, log); _ = cmd.Wait() }()
			return strings.TrimSuffix(url, "/"), nil
		}
	}
	return "", errors.Join(errors.New("the agent ended"), cmd.Wait())
}

// pass passes a connection on.
func pass(client net.Conn, address string) {
	defer client.Close()
	agent, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer agent.Close()
	go func() { _, _ = io.Copy(agent, client); _ = agent.Close() }()
	_, _ = io.Copy(client, agent)
}
