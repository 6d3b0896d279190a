package serve

import (
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
)

// policy lets a page load our style and nothing else, and run no script. What is missing is where it may send forms.
const policy = "default-src 'none'; style-src 'self'; img-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action "

// guard refuses requests that are not for reading or not for this agent, and sets the headers of all answers.
func (s *Server) guard(next http.Handler) http.Handler {
	hosts, forms := s.hosts(), "'none'"
	if len(s.Forms) > 0 {
		forms = "'self'"
	}
	ownPages := http.NewCrossOriginProtection()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy+forms)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case hosts != nil && !knownHost(r.Host, hosts):
			// A page from elsewhere whose name leads here would otherwise be read as one of ours (DNS rebinding).
			http.Error(w, "this agent does not answer to that host name; add it with --host", http.StatusMisdirectedRequest)
		case r.Method == http.MethodPost && slices.Contains(s.Forms, r.URL.Path):
			ownPages.Handler(next).ServeHTTP(w, r)
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			http.Error(w, "this agent answers GET only", http.StatusMethodNotAllowed)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// hosts returns the names of this agent; nil if any name will do, as for a Unix socket, which browsers do not reach.
func (s *Server) hosts() []string {
	if s.listener.Addr().Network() == "unix" {
		return nil
	}
	hosts := append([]string{"localhost"}, s.Hosts...)
	if host, _, err := net.SplitHostPort(s.Listen); err == nil && host != "" {
		hosts = append(hosts, host)
	}
	if name, err := os.Hostname(); err == nil {
		hosts = append(hosts, name)
	}
	return hosts
}

// knownHost reports whether a Host header has one of the names, or an IP address, which no name server can redirect.
func knownHost(header string, hosts []string) bool {
	host := header
	if name, _, err := net.SplitHostPort(header); err == nil {
		host = name
	}
	host = strings.Trim(host, "[]")
	return net.ParseIP(host) != nil || slices.ContainsFunc(hosts, func(h string) bool { return strings.EqualFold(h, host) })
}
