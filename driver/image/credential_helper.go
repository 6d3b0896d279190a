package image

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/docker/docker-credential-helpers/client"
	helpercredentials "github.com/docker/docker-credential-helpers/credentials"
	"golang.org/x/sys/unix"
)

// tokenUser is the username with which a helper says that its secret is an identity token.
const tokenUser = "<token>"

// askHelper queries the program docker-credential-SUFFIX for credentials of the server. That it has nothing for the
// server is not an error.
func askHelper(ctx context.Context, patience time.Duration, suffix, server string) (credential, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	program := "docker-credential-" + suffix
	var process *helperProcess
	got, err := client.Get(func(args ...string) client.Program {
		process = newHelperProcess(ctx, program, args)
		return process
	}, server)
	switch {
	case helpercredentials.IsErrCredentialsNotFound(err):
		return credential{}, nil
	case err != nil:
		// The library's message holds all that the program wrote.
		return credential{}, process.failure(ctx, program, patience)
	case got.Username == tokenUser:
		return credential{secret: got.Secret}, nil
	case got.Username == "" || got.Secret == "":
		return credential{}, nil
	}
	return credential{username: got.Username, secret: got.Secret}, nil
}

// helperProcess is a credential helper that runs.
type helperProcess struct {
	cmd            *exec.Cmd
	stdout, stderr []byte
	err            error
}

func newHelperProcess(ctx context.Context, program string, args []string) *helperProcess {
	cmd := exec.CommandContext(ctx, program, args...)
	// Helpers are often scripts. What they have started ends with them.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	cmd.WaitDelay = time.Second
	return &helperProcess{cmd: cmd}
}

// Input implements client.Program.
func (p *helperProcess) Input(in io.Reader) { p.cmd.Stdin = in }

// Output implements client.Program.
func (p *helperProcess) Output() ([]byte, error) {
	var stdout answer
	var stderr firstBytes
	p.cmd.Stdout, p.cmd.Stderr = &stdout, &stderr
	p.err = p.cmd.Run()
	if stdout.tooLong {
		p.err = errHelperAnswer // what has ended the helper, whatever it said of that
	}
	p.stdout, p.stderr = stdout.kept, stderr
	return p.stdout, p.err
}

// maxHelperError is how much of a helper's stderr is kept.
const maxHelperError = 4 << 10

// maxHelperAnswer is far more than any credential takes.
const maxHelperAnswer = 1 << 20

// errHelperAnswer ends a helper that writes without end.
var errHelperAnswer = fmt.Errorf("its answer is longer than %d bytes", maxHelperAnswer)

// answer keeps what is written to it, and refuses too much. The zero value is ready.
type answer struct {
	kept    []byte
	tooLong bool
}

// Write implements io.Writer.
func (a *answer) Write(p []byte) (int, error) {
	if len(a.kept)+len(p) > maxHelperAnswer {
		a.kept, a.tooLong = nil, true
		return 0, errHelperAnswer
	}
	a.kept = append(a.kept, p...)
	return len(p), nil
}

// firstBytes keeps the start of what is written to it: of an error only the first line is shown.
type firstBytes []byte

// Write implements io.Writer.
func (f *firstBytes) Write(p []byte) (int, error) {
	*f = append(*f, p[:min(len(p), maxHelperError-len(*f))]...)
	return len(p), nil
}

// failure says why the helper was of no use, without the secret that it may have written.
func (p *helperProcess) failure(ctx context.Context, program string, patience time.Duration) error {
	switch {
	case errors.Is(p.err, exec.ErrNotFound):
		return fmt.Errorf("the program %s is not on the PATH of the Nomad agent", program)
	case errors.Is(p.err, errHelperAnswer):
		return fmt.Errorf("the program %s is no credential helper: %w", program, p.err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("the program %s did not answer within %s", program, patience)
	case p.err == nil:
		return fmt.Errorf("the program %s answered with something that is no JSON object of a username and a secret", program)
	}
	// Helpers made with Docker's library write errors to stdout.
	for _, output := range [][]byte{p.stderr, p.stdout} {
		if said := harmless(output); said != "" {
			return fmt.Errorf("the program %s failed: %w: %s", program, p.err, said)
		}
	}
	return fmt.Errorf("the program %s failed: %w", program, p.err)
}

// harmless is the first line of what a helper wrote, if that is no answer: an answer holds the secret.
func harmless(output []byte) string {
	text := strings.TrimSpace(string(output))
	if json.Valid([]byte(text)) || strings.Contains(strings.ToLower(text), `secret"`) {
		return ""
	}
	const most = 200
	line, _, _ := strings.Cut(text, "\n")
	if len(line) > most {
		line = line[:most] + "…"
	}
	return strings.ToValidUTF8(line, "?")
}
