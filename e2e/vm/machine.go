// Package vm runs a Debian release with its own kernel, systemd and cgroup v2 in a virtual machine, by qemu's emulation, which
// needs nothing of the machine beneath. It knows nothing of Tranche; the tests in this folder do.
package vm

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// NomadPort is the port in the machine that Machine.Address leads to.
const NomadPort = 4646

// Machine is a virtual machine. Its disk stays when it is off.
type Machine struct {
	// Address is where the machine's NomadPort is found outside.
	Address string

	dir, system, media string
	qemu               *exec.Cmd
	ended              chan error
	guest              *guest
}

// New makes a machine in a directory, with a disk of its own from the folder that root.sh made for its system. The files of
// the folder media are on a second disk, mounted at /media. The machine is off.
func New(ctx context.Context, dir, system, media string) (*Machine, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	m := &Machine{dir: dir, system: system, media: filepath.Join(dir, "media.img")}
	if err := run(ctx, "cp", "--sparse=always", "--reflink=auto", filepath.Join(system, "disk.img"), filepath.Join(dir, "disk.img")); err != nil {
		return nil, err
	}
	if err := run(ctx, "truncate", "-s", "1G", m.media); err != nil {
		return nil, err
	}
	if err := run(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-L", "media", "-d", media, m.media); err != nil {
		return nil, err
	}
	port, err := freePort()
	m.Address = fmt.Sprintf("127.0.0.1:%d", port)
	return m, err
}

func run(ctx context.Context, name string, args ...string) error {
	if out, err := exec.CommandContext(ctx, name, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), err, out)
	}
	return nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Boot switches the machine on and returns when systemd has started all services.
func (m *Machine) Boot(ctx context.Context) error {
	ours, its, err := socketPair()
	if err != nil {
		return err
	}
	m.guest = newGuest(ours)
	//nolint:contextcheck // the machine runs on when Boot has returned
	m.qemu = exec.Command("qemu-system-x86_64", m.arguments()...)
	m.qemu.ExtraFiles = []*os.File{its}
	m.qemu.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	var said strings.Builder
	m.qemu.Stderr = &said
	err = m.qemu.Start()
	its.Close()
	if err != nil {
		return fmt.Errorf("start qemu: %w", err)
	}
	m.ended = make(chan error, 1)
	go func(qemu *exec.Cmd, ended chan<- error) {
		err := qemu.Wait()
		if err != nil {
			err = fmt.Errorf("%w: %s", err, said.String())
		}
		ended <- err
		close(ended)
	}(m.qemu, m.ended)
	if err := m.guest.wait(ctx); err != nil {
		return fmt.Errorf("boot: %w", err)
	}
	// A failed unit, which makes the system degraded, is for the tests to judge.
	_, err = m.Shell(ctx, "systemctl is-system-running --wait || :")
	return err
}

// arguments are qemu's. The guest agent's channel is file descriptor 3. Each flush of a disk would cost time; a power cut loses
// what the machine's kernel had not written, as it should. The kernel does not test its timer, which a busy machine emulates too
// late for that, and a panic ends qemu.
func (m *Machine) arguments() []string {
	return []string{
		"-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2", "-m", "2048",
		"-display", "none", "-monitor", "none", "-no-reboot",
		"-kernel", filepath.Join(m.system, "vmlinuz"), "-initrd", filepath.Join(m.system, "initrd"),
		"-append", "root=/dev/vda rw console=ttyS0 loglevel=4 no_timer_check panic=-1 SYSTEMD_COLORS=0 TERM=dumb",
		"-drive", "if=virtio,format=raw,cache=unsafe,file=" + filepath.Join(m.dir, "disk.img"),
		"-drive", "if=virtio,format=raw,readonly=on,file=" + m.media,
		"-nic", fmt.Sprintf("user,model=virtio-net-pci,restrict=on,hostfwd=tcp:%s-:%d", m.Address, NomadPort),
		"-chardev", "file,append=on,id=console,path=" + m.consoleLog(), "-serial", "chardev:console",
		"-device", "virtio-serial", "-chardev", "socket,id=agent,fd=3", "-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0",
	}
}

func (m *Machine) consoleLog() string { return filepath.Join(m.dir, "console.log") }

// progress is what systemd writes while it waits for something, again and again.
var progress = regexp.MustCompile(`(?m)^.*Job .* running \(.*\n`)

// Console is the end of what the machine wrote to its console.
func (m *Machine) Console() string {
	text, err := os.ReadFile(m.consoleLog())
	if err != nil {
		return err.Error()
	}
	text = progress.ReplaceAll(text, nil)
	return string(text[max(0, len(text)-4000):])
}

// Shell runs a shell script in the machine, as root, and returns its standard output.
func (m *Machine) Shell(ctx context.Context, script string) (string, error) {
	return m.guest.exec(ctx, script, nil)
}

// Write writes a file in the machine.
func (m *Machine) Write(ctx context.Context, path, content string) error {
	_, err := m.guest.exec(ctx, "cat >"+path, []byte(content))
	return err
}

// CutPower ends the machine at once, as if its cable were pulled.
func (m *Machine) CutPower() {
	if m.qemu != nil {
		_ = m.qemu.Process.Kill()
		for range m.ended { // until it is closed: the error is that of the kill
		}
		m.guest.close()
		m.qemu = nil
	}
}

// Reboot shuts the machine down in order and boots it again.
func (m *Machine) Reboot(ctx context.Context) error {
	// The command's answer may not come any more.
	shutdown, cancel := context.WithCancel(ctx)
	go func() { _, _ = m.Shell(shutdown, "systemctl reboot") }()
	defer cancel()
	select {
	case err := <-m.ended:
		cancel()
		m.guest.close()
		m.qemu = nil
		if err != nil {
			return fmt.Errorf("shut down: %w", err)
		}
		return m.Boot(ctx)
	case <-ctx.Done():
		return fmt.Errorf("shut down: %w", ctx.Err())
	}
}

// socketPair is a connection and the file of its other end.
func socketPair() (net.Conn, *os.File, error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("make a socket pair: %w", err)
	}
	ours, its := os.NewFile(uintptr(fds[0]), "agent"), os.NewFile(uintptr(fds[1]), "agent")
	conn, err := net.FileConn(ours)
	return conn, its, errors.Join(err, ours.Close())
}
