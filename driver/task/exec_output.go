package task

// maxExecOutput is how many bytes of a command's output are returned, of stdout and of stderr. Nomad cuts the output of a
// script check to a few KiB, and accepts no response of more than some MiB.
const maxExecOutput = 64 << 10

// tail keeps the end of what is written to it, where errors are. The image's programs decide how much they write, and must
// not decide how much memory this plugin uses. The zero value is ready.
type tail struct{ kept []byte }

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	t.kept = append(t.kept, p[max(0, n-maxExecOutput):]...)
	// Not at each write, which would move all of it for each line.
	if len(t.kept) > 2*maxExecOutput {
		t.kept = append(t.kept[:0], t.bytes()...)
	}
	return n, nil
}

// bytes returns the last maxExecOutput bytes that were written.
func (t *tail) bytes() []byte { return t.kept[max(0, len(t.kept)-maxExecOutput):] }
