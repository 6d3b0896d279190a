package serve

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/shoenig/test/must"
	"golang.org/x/crypto/bcrypt"
)

// start serves "content" and returns the server.
func start(t *testing.T, o Options) *Server {
	t.Helper()
	s, err := Listen(o)
	must.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- s.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("content")) }))
	}()
	t.Cleanup(func() {
		stop()
		must.NoError(t, <-done)
	})
	return s
}

// answer returns the status, the headers and the body of an answer.
func answer(t *testing.T, client *http.Client, method, url, host string) (int, http.Header, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	must.NoError(t, err)
	if host != "" {
		request.Host = host
	}
	return do(t, client, request)
}

func do(t *testing.T, client *http.Client, request *http.Request) (int, http.Header, string) {
	t.Helper()
	response, err := client.Do(request)
	must.NoError(t, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	must.NoError(t, err)
	return response.StatusCode, response.Header, string(body)
}

func TestServe_ReadsOnlyAndKnowsItsNames(t *testing.T) {
	s := start(t, Options{Listen: "127.0.0.1:0", Hosts: []string{"gpu.example.com"}})
	for _, c := range []struct {
		method, host string
		want         int
	}{
		{"GET", "", 200}, {"HEAD", "", 200}, {"GET", "localhost:9760", 200}, {"GET", "[::1]:9760", 200},
		{"GET", "GPU.example.com", 200}, {"GET", "gpu.example.com:443", 200},
		{"POST", "", 405}, {"DELETE", "", 405}, {"OPTIONS", "", 405}, {"TRACE", "", 405},
		{"GET", "evil.example.com", 421}, {"GET", "localhost.evil.example.com", 421}, {"GET", "127.0.0.1.evil.example.com", 421},
	} {
		status, header, _ := answer(t, http.DefaultClient, c.method, s.URL(), c.host)
		must.Eq(t, c.want, status, must.Sprintf("%s of %q", c.method, c.host))
		must.Eq(t, policy+"'none'", header.Get("Content-Security-Policy"))
		must.Eq(t, "nosniff", header.Get("X-Content-Type-Options"))
	}
}

// TestServe_Forms takes forms at their paths alone, and of our own pages alone.
func TestServe_Forms(t *testing.T) {
	s := start(t, Options{Listen: "127.0.0.1:0", Forms: []string{"/login"}})
	for _, c := range []struct {
		path, host string
		header     http.Header
		want       int
	}{
		{"login", "", nil, 200},
		{"login", "", http.Header{"Sec-Fetch-Site": {"same-origin"}}, 200},
		{"login", "", http.Header{"Sec-Fetch-Site": {"cross-site"}}, 403},
		{"login", "", http.Header{"Sec-Fetch-Site": {"same-site"}}, 403},
		{"login", "", http.Header{"Origin": {"https://evil.example.com"}}, 403},
		{"login", "evil.example.com", nil, 421},
		{"", "", nil, 405}, {"login/", "", nil, 405}, {"login?x=y", "", nil, 200},
	} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL()+c.path, strings.NewReader("token=x"))
		must.NoError(t, err)
		request.Host = c.host
		maps.Copy(request.Header, c.header)
		status, header, _ := do(t, http.DefaultClient, request)
		must.Eq(t, c.want, status, must.Sprintf("%q of %q with %v", c.path, c.host, c.header))
		must.Eq(t, policy+"'self'", header.Get("Content-Security-Policy"))
	}
}

// TestServe_ManyConnections opens more connections than are served at once and finishes no request on them: the others wait, and the
// agent answers again when the first have timed out.
func TestServe_ManyConnections(t *testing.T) {
	s := start(t, Options{Listen: "127.0.0.1:0"})
	before := descriptors(t)
	const more = 100
	var connections []net.Conn
	for range mostConnections + more {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", s.listener.Addr().String())
		must.NoError(t, err)
		defer c.Close()
		_, err = io.WriteString(c, "GET / HTTP/1.1\r\nHost: localhost\r\nX-Unfinished: ")
		must.NoError(t, err)
		connections = append(connections, c)
	}
	_, err := io.WriteString(connections[mostConnections-1], "no\r\n\r\n")
	must.NoError(t, err)
	response, err := http.ReadResponse(bufio.NewReader(connections[mostConnections-1]), nil)
	must.NoError(t, err)
	must.NoError(t, response.Body.Close())
	must.LessEq(t, before+len(connections)+mostConnections, descriptors(t), must.Sprint("more connections are served at once"))

	status, _, _ := answer(t, http.DefaultClient, http.MethodGet, s.URL(), "")
	must.Eq(t, 200, status)
}

// descriptors counts the open files of this process.
func descriptors(t *testing.T) int {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	must.NoError(t, err)
	return len(all)
}

// TestServe_AnswersBeforeItEnds ends the context while a request is being answered.
func TestServe_AnswersBeforeItEnds(t *testing.T) {
	s, err := Listen(Options{Listen: "127.0.0.1:0"})
	must.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	var answered atomic.Bool
	ended := make(chan bool, 1)
	go func() {
		err := s.Serve(ctx, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			stop()
			for { // until nobody listens any more
				c, err := new(net.Dialer).DialContext(r.Context(), "tcp", s.listener.Addr().String())
				if err != nil {
					break
				}
				_ = c.Close()
			}
			answered.Store(true)
			_, _ = w.Write([]byte("content"))
		}))
		ended <- err == nil && answered.Load()
	}()
	_, _, body := answer(t, http.DefaultClient, http.MethodGet, s.URL(), "")
	must.Eq(t, "content", body)
	must.True(t, <-ended)
}

func TestListen_RefusesToBeReadByOthersWithoutTLS(t *testing.T) {
	config := tlsConfig(t)
	plain := filepath.Join(t.TempDir(), "web.yml")
	must.NoError(t, os.WriteFile(plain, []byte("basic_auth_users:\n  a: $2y$05$abcdefghijklmnopqrstuuJ0OXTSnOlGqLlpMP9AFX9rLBdNT3zc2\n"), 0o600))
	for _, c := range []struct {
		listen, config, wrong string
	}{
		{"0.0.0.0:0", "", "--listen: \"0.0.0.0:0\" can be reached from other machines"},
		{":0", "", "can be reached from other machines"},
		{"[::]:0", plain, "set TLS up with --web-config"},
		{"nonsense", "", "write HOST:PORT or unix:PATH"},
		{"127.0.0.1:0", "/nowhere.yml", "--web-config: open /nowhere.yml: no such file or directory; create it or correct the path"},
		{"127.0.0.1:0", webConfig(t, "cert_file: c.pem\n  key_file: k.pem"), "--web-config: cert_file: stat "},
		{"127.0.0.1:0", webConfig(t, "key_file: /no/key.pem"), "--web-config: key_file: stat /no/key.pem: no such file or directory; create it"},
		{"127.0.0.1:0", webConfig(t, "client_ca_file: /no/ca.pem"), "--web-config: client_ca_file: stat /no/ca.pem: no such file or directory; create it"},
		{"127.0.0.1:99999", "", "--listen: "},
		{"0.0.0.0:0", config, ""}, {"127.0.0.1:0", plain, ""}, {"[::1]:0", "", ""}, {"localhost:0", "", ""},
	} {
		s, err := Listen(Options{Listen: c.listen, WebConfig: c.config})
		if c.wrong != "" {
			must.ErrorContains(t, err, c.wrong)
			continue
		}
		must.NoError(t, err, must.Sprint(c.listen))
		must.NoError(t, s.listener.Close())
	}
}

func TestServe_TLS(t *testing.T) {
	s := start(t, Options{Listen: "127.0.0.1:0", WebConfig: tlsConfig(t)})
	must.StrHasPrefix(t, "https://127.0.0.1:", s.URL())
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	status, _, _ := answer(t, client, http.MethodGet, s.URL(), "")
	must.Eq(t, 200, status)
}

func TestServe_BasicAuth(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yml")
	hash, err := bcrypt.GenerateFromPassword([]byte("test"), bcrypt.MinCost)
	must.NoError(t, err)
	must.NoError(t, os.WriteFile(file, []byte("basic_auth_users:\n  admin: "+string(hash)+"\n"), 0o600))
	s := start(t, Options{Listen: "127.0.0.1:0", WebConfig: file})
	status, _, _ := answer(t, http.DefaultClient, http.MethodGet, s.URL(), "")
	must.Eq(t, 401, status)
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL(), nil)
	must.NoError(t, err)
	request.SetBasicAuth("admin", "test")
	status, _, _ = do(t, http.DefaultClient, request)
	must.Eq(t, 200, status)
}

func TestServe_UnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.sock")
	old, err := net.Listen("unix", path) // one that an agent has left which was killed
	must.NoError(t, err)
	old.(*net.UnixListener).SetUnlinkOnClose(false)
	must.NoError(t, old.Close())
	s := start(t, Options{Listen: "unix:" + path})
	_, err = Listen(Options{Listen: "unix:" + path})
	must.ErrorContains(t, err, "another agent listens on it")
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}}
	_, _, body := answer(t, client, http.MethodGet, "http://tranche/", "")
	must.Eq(t, "content", body)
	must.Eq(t, "unix:"+path, s.URL())
	info, err := os.Stat(path)
	must.NoError(t, err)
	must.Eq(t, 0o660, info.Mode().Perm())
}

func TestListen_WrongNames(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	must.NoError(t, os.WriteFile(file, []byte("content"), 0o600))
	for _, c := range []struct {
		listen, host, wrong string
	}{
		{"unix:", "", `--listen: "unix:" has no path of a socket; write unix:PATH`},
		{"unix:@abstract", "", "has no path of a socket"},
		{"unix:/" + strings.Repeat("a", 107), "", "is 108 bytes long, and the path of a Unix socket at most 107"},
		{"unix:" + file, "", "exists and is no socket"},
		{"unix:/no/agent.sock", "", "--listen: the socket's directory: stat /no: no such file or directory; create it or correct the path"},
		{"127.0.0.1:0", "https://gpu.example.com", `--host: "https://gpu.example.com" is no host name; write one such as gpu-7.example.com`},
		{"127.0.0.1:0", "gpu:9760", "without a port"},
		{"127.0.0.1:0", "*.example.com", "--host: "},
	} {
		_, err := Listen(Options{Listen: c.listen, Hosts: []string{c.host}})
		must.ErrorContains(t, err, c.wrong)
	}
	content, err := os.ReadFile(file)
	must.NoError(t, err)
	must.Eq(t, "content", string(content))
}

// webConfig makes a configuration with these TLS settings, without the files that it names.
func webConfig(t *testing.T, tls string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "web.yml")
	must.NoError(t, os.WriteFile(file, []byte("tls_server_config:\n  "+tls+"\n"), 0o600))
	return file
}

// tlsConfig makes a configuration with a certificate.
func tlsConfig(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	var out bytes.Buffer
	cmd := exec.Command("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
		"-keyout", "key.pem", "-out", "cert.pem", "-subj", "/CN=localhost", "-days", "1")
	cmd.Dir, cmd.Stderr = dir, &out
	must.NoError(t, cmd.Run(), must.Sprint(out.String()))
	file := filepath.Join(dir, "web.yml")
	must.NoError(t, os.WriteFile(file, []byte("tls_server_config:\n  cert_file: cert.pem\n  key_file: key.pem\n"), 0o600))
	return file
}
