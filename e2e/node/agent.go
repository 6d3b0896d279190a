package node

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"text/template"

	"github.com/hashicorp/nomad/api"
)

// Agent is a Nomad agent with ports and state of its own: server and client in one, or a client of another one.
type Agent struct {
	// Address is the URL of its HTTP API.
	Address string
	API     *api.Client

	// rpc is where clients of this agent join it; joins reports whether this one is such a client.
	rpc    string
	joins  bool
	binary string
	dir    string
	log    string
	env    []string
	cmd    *exec.Cmd
	ended  chan struct{}
}

// agentSettings is what the template of the agent's configuration takes.
type agentSettings struct {
	Name, Dir, Data, PluginDir, CNIPath string
	HTTP, RPC, Serf                     int
	Server                              string // of another agent; empty if this one is a server
	Interface                           string
	DeviceConfig, DriverConfig          string
	DeniedDrivers, PluginBlocks         string
}

var agentTemplate = template.Must(template.New("agent").Parse(`# Written for one run of the tests or the demo.
name       = "{{.Name}}"
data_dir   = "{{.Data}}"
plugin_dir = "{{.PluginDir}}"
bind_addr  = "127.0.0.1"
log_level  = "DEBUG"

disable_update_check = true

advertise {
  http = "127.0.0.1"
  rpc  = "127.0.0.1"
  serf = "127.0.0.1"
}

ports {
  http = {{.HTTP}}
  rpc  = {{.RPC}}
  serf = {{.Serf}}
}

# Without it the agent asks task drivers for no statistics at all.
telemetry {
  publish_allocation_metrics = true
}

{{if not .Server}}server {
  enabled          = true
  bootstrap_expect = 1
  raft_multiplier  = 1
}
{{end}}`))

// clientTemplate is the second file of the configuration.
var clientTemplate = template.Must(template.New("client").Parse(`client {
  enabled             = true
{{if .Server}}  servers             = ["{{.Server}}"]
{{end}}  network_interface   = "{{.Interface}}"
  cni_path            = "{{.CNIPath}}"
  cni_config_dir      = "{{.Dir}}/cni"
  max_kill_timeout    = "60s"

  options = {
    "fingerprint.denylist" = "env_aws,env_gce,env_azure,env_digitalocean"
    "driver.denylist"      = "{{.DeniedDrivers}}"
  }
}
`))

// pluginTemplate is the third.
var pluginTemplate = template.Must(template.New("plugins").Parse(`plugin "nomad-device-tranche" {
  config {
{{.DeviceConfig}}  }
}

plugin "nomad-driver-tranche" {
  config {
{{.DriverConfig}}  }
}
{{.PluginBlocks}}`))

// writeAgentConfig chooses free ports and writes the agent's configuration.
func writeAgentConfig(s *agentSettings) error {
	ports, err := freePorts(3)
	if err != nil {
		return err
	}
	s.HTTP, s.RPC, s.Serf = ports[0], ports[1], ports[2]
	for name, file := range map[string]*template.Template{
		serverFile: agentTemplate, clientFile: clientTemplate, pluginFile: pluginTemplate,
	} {
		var text bytes.Buffer
		if err := file.Execute(&text, s); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(s.Dir, name), text.Bytes(), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// freePorts finds n TCP ports of the loopback interface that nobody listens on.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("find a free port: %w", err)
		}
		defer l.Close()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

// The files of an agent's configuration, in its node's directory.
const (
	serverFile = "server.hcl"
	clientFile = "client.hcl"
	pluginFile = "plugins.hcl"
)

// Start starts the agent and returns when its API answers.
func (a *Agent) Start(ctx context.Context) error {
	if _, err := os.Stat(filepath.Join(a.dir, "nomad")); errors.Is(err, fs.ErrNotExist) && !a.joins {
		if err := a.bootstrap(ctx); err != nil {
			return err
		}
	}
	return a.StartWith(ctx, filepath.Join(a.dir, pluginFile), "Nomad agent started!")
}

// StartWith starts the agent with another file that configures the plugins, and returns when a line is in its log.
func (a *Agent) StartWith(ctx context.Context, pluginFile, line string) error {
	return a.run(ctx, line, "-config", filepath.Join(a.dir, serverFile),
		"-config", filepath.Join(a.dir, clientFile), "-config", pluginFile)
}

// bootstrap runs the server alone, until it has a keyring. A client that comes while a new server has a leader and no
// keyring yet is refused, and comes again only after a quarter of a minute.
func (a *Agent) bootstrap(ctx context.Context) error {
	err := a.run(ctx, "nomad.keyring: initialized keyring", "-config", filepath.Join(a.dir, serverFile))
	if err == nil {
		a.Kill()
	}
	return err
}

// run starts the agent and returns when it has written a line to its log.
func (a *Agent) run(ctx context.Context, line string, args ...string) error {
	log, err := os.OpenFile(a.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	a.cmd = exec.Command(a.binary, append([]string{"agent"}, args...)...)
	a.cmd.Env = append(os.Environ(), a.env...)
	// A process group of its own: a signal that the terminal sends to the demo's group must not end the agent first.
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// A pipe of our own: Wait then returns when the agent has ended, although its plugins live on and hold the pipe.
	reader, writer, err := os.Pipe()
	if err != nil {
		return err
	}
	a.cmd.Stdout, a.cmd.Stderr = writer, writer
	if err := a.cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", a.binary, err)
	}
	writer.Close()
	started := &startWatch{log: log, line: line, seen: make(chan struct{})}
	go func() {
		started.copy(reader)
		log.Close()
	}()
	a.ended = make(chan struct{})
	go func() {
		_ = a.cmd.Wait()
		close(a.ended)
	}()
	select {
	case <-started.seen:
		return nil
	case <-a.ended:
		return fmt.Errorf("the Nomad agent ended while starting; the end of %s:\n%s", a.log, tail(a.log, 20))
	case <-ctx.Done():
		return fmt.Errorf("the Nomad agent did not start: %w; the end of %s:\n%s", ctx.Err(), a.log, tail(a.log, 20))
	}
}

// Kill kills the agent as the kernel would: its plugins and tasks stay.
func (a *Agent) Kill() {
	_ = a.cmd.Process.Kill()
	<-a.ended
}

// Stop asks the agent to end and waits.
func (a *Agent) Stop() {
	_ = a.cmd.Process.Signal(syscall.SIGTERM)
	<-a.ended
}

// PID is the agent's process ID.
func (a *Agent) PID() int { return a.cmd.Process.Pid }

// startWatch copies an agent's output to its log and tells when a line has appeared in it.
type startWatch struct {
	log  io.Writer
	line string
	seen chan struct{}
	once sync.Once
}

func (w *startWatch) copy(r io.Reader) {
	scanner := bufio.NewReader(r)
	for {
		text, err := scanner.ReadString('\n')
		_, _ = io.WriteString(w.log, text)
		if strings.Contains(text, w.line) {
			w.once.Do(func() { close(w.seen) })
		}
		if err != nil {
			return
		}
	}
}

// tail returns the last n lines of a file, for messages.
func tail(path string, n int) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimRight(string(data), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "\n")
}
