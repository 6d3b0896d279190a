package fleet

import (
	"net/http"
	"strings"
)

// mostFormBytes bounds a form with a token.
const mostFormBytes = 8 << 10

// rights is what a viewer's token needs.
const rights = "The token needs node:read, and read-job in the namespaces whose jobs it is to show."

// signIn begins a session with the token of a form, if Nomad takes it.
func (f *Fleet) signIn(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, mostFormBytes)
	token := strings.TrimSpace(r.PostFormValue("token"))
	if token == "" {
		f.askForToken(w, r, http.StatusBadRequest, "The form has no token.")
		return
	}
	if strings.ContainsFunc(token, func(c rune) bool { return c <= ' ' || c > '~' }) { // no header could have it
		f.askForToken(w, r, http.StatusBadRequest, "This is no token of Nomad's: copy its Secret ID.")
		return
	}
	v, err := f.Nomad.viewer(token)
	if err == nil {
		_, err = v.look(r.Context())
	}
	switch {
	case refused(err):
		f.askForToken(w, r, http.StatusForbidden, "Nomad does not take the token: "+err.Error()+". "+rights)
	case err != nil:
		f.noAnswer(w, r, err)
	default:
		f.sessions.end(w, r)
		setCookie(w, r, f.sessions.start(v), 0)
		http.Redirect(w, r, "/", http.StatusSeeOther)
	}
}

// signOut ends a session.
func (f *Fleet) signOut(w http.ResponseWriter, r *http.Request) {
	f.sessions.end(w, r)
	http.Redirect(w, r, signInPath, http.StatusSeeOther)
}

// askForToken shows the form for a token, and why it is shown.
func (f *Fleet) askForToken(w http.ResponseWriter, r *http.Request, status int, message string) {
	v := f.newView(r, "Sign in")
	v.Refresh, v.Path, v.Message, v.Rights, v.Hours = 0, "/", message, rights, int(sessionLife.Hours())
	f.templates.Write(w, status, "sign-in", v)
}
