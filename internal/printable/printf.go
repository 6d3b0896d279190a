package printable

import (
	"fmt"
	"io"
	"reflect"
	"strings"
)

// Fprintf is fmt.Fprintf, but texts among the arguments are written as Text returns them. Lines are those of the format.
func Fprintf(w io.Writer, format string, args ...any) {
	for i, arg := range args {
		_, hasText := arg.(fmt.Stringer)
		_, isError := arg.(error)
		if hasText || isError || reflect.ValueOf(arg).Kind() == reflect.String {
			args[i] = Text(fmt.Sprint(arg))
		}
	}
	_, _ = fmt.Fprintf(w, format, args...) // the writer keeps the error
}

// Lines returns a text of several lines, each as Text returns it.
func Lines(text string) string {
	lines := strings.Split(text, "\n")
	for i := range lines {
		lines[i] = Text(lines[i])
	}
	return strings.Join(lines, "\n")
}
