package page

import (
	"bytes"
	"embed"
	"html/template"
	"io/fs"
	"maps"
	"net/http"
	"net/url"
	"strconv"
	"sync"
)

//go:embed templates/*.html
var sources embed.FS

//go:embed style.css
var style []byte

//go:embed icon.svg
var icon []byte

// Frame is what every page has around its content: those of a node, and those of a fleet.
type Frame struct {
	Title string
	Nav   []Link
	// Path and Query are the page's own, and Refresh how often it is loaded again, in seconds; 0 for never.
	Path    string
	Query   url.Values
	Refresh int
}

// Link is a link of the navigation.
type Link struct{ Address, Text string }

// NewFrame returns the frame of a page that is requested.
func NewFrame(r *http.Request, title string) Frame {
	return Frame{Title: title, Path: r.URL.Path, Refresh: refresh(r)}
}

// Reload returns the page's own address, with which it is loaded again after some seconds; 0 for never.
func (f *Frame) Reload(seconds int) string {
	query := url.Values{}
	maps.Copy(query, f.Query)
	if seconds > 0 {
		query.Set("refresh", strconv.Itoa(seconds))
	}
	return (&url.URL{Path: f.Path, RawQuery: query.Encode()}).RequestURI()
}

// The least and the most seconds after which a page is loaded again.
const minRefresh, maxRefresh = 5, 3600

func refresh(r *http.Request) int {
	seconds, err := strconv.Atoi(r.URL.Query().Get("refresh"))
	if err != nil || seconds <= 0 {
		return 0
	}
	return min(max(seconds, minRefresh), maxRefresh)
}

// Templates are those of pages, by name.
type Templates map[string]*template.Template

// frame has the templates of a page without its content.
var frame = sync.OnceValues(func() (*template.Template, error) {
	return template.New("").Funcs(functions).ParseFS(sources, "templates/layout.html", "templates/parts.html")
})

// Parse returns the templates of pages: for each name its file in templates, or, where that is missing, the file of a node's page.
// All have what is in the file parts.
func Parse(own fs.FS, names ...string) (Templates, error) {
	around, err := frame()
	if err != nil {
		return nil, err
	}
	all := make(Templates, len(names))
	for _, name := range names {
		page, err := around.Clone()
		if err == nil {
			page, err = page.ParseFS(own, "templates/parts.html")
		}
		if err != nil {
			return nil, err
		}
		file, from := "templates/"+name+".html", own
		if _, err := fs.Stat(own, file); err != nil {
			from = sources
		}
		if all[name], err = page.ParseFS(from, file); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// Write writes all of a page or an error.
func (t Templates) Write(w http.ResponseWriter, status int, name string, view any) {
	var b bytes.Buffer
	if err := t[name].ExecuteTemplate(&b, "layout.html", view); err != nil {
		http.Error(w, "the page cannot be made: "+err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes())
}

// RegisterFiles adds what pages load to a server.
func RegisterFiles(mux *http.ServeMux) {
	mux.HandleFunc("GET /style.css", file("text/css; charset=utf-8", style))
	mux.HandleFunc("GET /icon.svg", file("image/svg+xml", icon))
}

// file serves a file that is part of the program.
func file(contentType string, content []byte) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", contentType)
		_, _ = w.Write(content)
	}
}

// JobPage returns the address of a job's page. Names are in the query, since any name may be there, ".." too.
func JobPage(namespace, name string) string { return jobKey{namespace, name}.page() }

// NomadPage returns the page of a job or an allocation in Nomad's web interface; empty if there is none.
func NomadPage(ui *url.URL, parts ...string) string {
	if ui == nil {
		return ""
	}
	return ui.JoinPath(append([]string{"ui"}, escaped(parts)...)...).String()
}

// escaped escapes each part, so that a slash in a name begins no new one.
func escaped(parts []string) []string {
	all := make([]string, len(parts))
	for i, part := range parts {
		all[i] = url.PathEscape(part)
	}
	return all
}
