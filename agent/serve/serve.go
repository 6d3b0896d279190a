// Package serve offers the agent's pages and metrics by HTTP: to programs of this node, or to others by TLS. It answers requests
// to read, and forms of our own pages where there are any.
package serve

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/prometheus/exporter-toolkit/web"
	"go.yaml.in/yaml/v2"
	"golang.org/x/net/netutil"

	"github.com/tranche-gpu/tranche/internal/namedfile"
)

// Options say where the agent listens, and for whom.
type Options struct {
	// Listen is an address such as 127.0.0.1:9760, or unix:PATH.
	Listen string
	// WebConfig is a file in the format of Prometheus's exporters, with TLS and passwords; empty if there is none.
	WebConfig string
	// Hosts are further names by which browsers may call the agent.
	Hosts []string
	// Forms are the paths to which our own pages may send forms; none by default.
	Forms []string
}

// unixPrefix marks the path of a Unix socket.
const unixPrefix = "unix:"

// Server is a server whose address is taken.
type Server struct {
	Options
	listener net.Listener
	tls      bool
}

// Listen checks the options and takes the address.
func Listen(o Options) (*Server, error) {
	s := &Server{Options: o}
	var err error
	if s.tls, err = readWebConfig(o.WebConfig); err != nil {
		return nil, err
	}
	for _, host := range o.Hosts {
		if strings.ContainsAny(host, "/:@*[] ") && net.ParseIP(host) == nil {
			return nil, fmt.Errorf("--host: %q is no host name; write one such as gpu-7.example.com, without a port", host)
		}
	}
	path, isSocket := strings.CutPrefix(o.Listen, unixPrefix)
	if isSocket {
		s.listener, err = listenSocket(path)
	} else {
		if err := checkAddress(o.Listen, s.tls); err != nil {
			return nil, fmt.Errorf("--listen: %w", err)
		}
		s.listener, err = listen("tcp", o.Listen)
	}
	if err != nil {
		return nil, fmt.Errorf("--listen: %w", err)
	}
	return s, nil
}

// readWebConfig checks the configuration of --web-config and reports whether it has TLS.
func readWebConfig(file string) (hasTLS bool, err error) {
	if file == "" {
		return false, nil
	}
	content, err := os.ReadFile(file)
	if err != nil {
		return false, namedfile.Error("--web-config", err)
	}
	if hasTLS, err = checkWebConfig(file, content); err != nil {
		return false, fmt.Errorf("--web-config: %w", err)
	}
	return hasTLS, nil
}

func checkWebConfig(file string, content []byte) (hasTLS bool, err error) {
	var config struct {
		TLS map[string]any `yaml:"tls_server_config"`
	}
	if err := yaml.Unmarshal(content, &config); err != nil {
		return false, err
	}
	for _, option := range []string{"cert_file", "key_file", "client_ca_file"} {
		path, _ := config.TLS[option].(string)
		if path != "" && !filepath.IsAbs(path) {
			path = filepath.Join(filepath.Dir(file), path)
		}
		if err := namedfile.Check(option, path); err != nil {
			return false, err
		}
	}
	return len(config.TLS) > 0, web.Validate(file)
}

// checkAddress refuses addresses at which others could read along.
func checkAddress(address string, hasTLS bool) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("%q is no address: %w; write HOST:PORT or unix:PATH", address, err)
	}
	if ip := net.ParseIP(host); host == "localhost" || ip != nil && ip.IsLoopback() || hasTLS {
		return nil
	}
	return fmt.Errorf("%q can be reached from other machines, and what they read would not be encrypted; set TLS up with "+
		"--web-config, or listen on 127.0.0.1", address)
}

func listen(network, address string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), network, address)
}

// longestSocket is how many bytes the path of a Unix socket may have (unix(7)).
const longestSocket = 107

// checkSocket refuses paths at which there cannot be a socket of ours.
func checkSocket(path string) error {
	if path == "" || path[0] == '@' {
		return fmt.Errorf("%q has no path of a socket; write unix:PATH, such as unix:/run/tranche/agent.sock", unixPrefix+path)
	}
	if len(path) > longestSocket {
		return fmt.Errorf("%s is %d bytes long, and the path of a Unix socket at most %d; choose a shorter one", path, len(path), longestSocket)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() != os.ModeSocket {
		return fmt.Errorf("%s exists and is no socket; choose another path", path)
	}
	return namedfile.Check("the socket's directory", filepath.Dir(path))
}

// listenSocket replaces a socket on which nobody listens any more.
func listenSocket(path string) (net.Listener, error) {
	if err := checkSocket(path); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(path); err == nil {
		if other, err := new(net.Dialer).DialContext(context.Background(), "unix", path); err == nil {
			_ = other.Close()
			return nil, fmt.Errorf("%s: another agent listens on it", path)
		}
		if err := os.Remove(path); err != nil {
			return nil, err
		}
	}
	l, err := listen("unix", path)
	if err != nil {
		return nil, err
	}
	return l, os.Chmod(path, 0o660)
}

// URL returns the address for a browser; of a Unix socket the option.
func (s *Server) URL() string {
	if s.listener.Addr().Network() == "unix" {
		return s.Listen
	}
	scheme := "http"
	if s.tls {
		scheme = "https"
	}
	return scheme + "://" + s.listener.Addr().String() + "/"
}

// shutdownTimeout is how long requests that are being answered have when the agent ends.
const shutdownTimeout = 2 * time.Second

const (
	// mostConnections is how many connections are served at once; others wait. With their headers and buffers they fit into the
	// memory that tranche-agent.service allows. Who a client is, is known only from its request.
	mostConnections = 256
	// headerTimeout is how long a client may take for the TLS handshake and to send its request's header.
	headerTimeout = 5 * time.Second
)

// Serve answers requests until the context ends.
func (s *Server) Serve(ctx context.Context, handler http.Handler) error {
	server := &http.Server{
		Handler:           s.guard(handler),
		ReadHeaderTimeout: headerTimeout,
		ReadTimeout:       10 * time.Second,
		WriteTimeout:      30 * time.Second,
		IdleTimeout:       30 * time.Second,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          slog.NewLogLogger(slog.DiscardHandler, slog.LevelInfo), // what clients do wrong is no news
	}
	answered := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(answered)
		bounded, cancel := context.WithTimeout(context.Background(), shutdownTimeout)
		defer cancel()
		if server.Shutdown(bounded) != nil {
			_ = server.Close()
		}
	})
	defer stop()
	file := s.WebConfig
	err := web.Serve(netutil.LimitListener(s.listener, mostConnections), server, &web.FlagConfig{WebConfigFile: &file}, slog.New(slog.DiscardHandler))
	if errors.Is(err, http.ErrServerClosed) {
		<-answered // the server stops listening before it has answered all
		return nil
	}
	return err
}
