package task

// maxExecOutput is how much of what a command wrote Nomad is given, of stdout and of stderr. It cuts the output of a script
// check to a few KiB itself, and could not take more than some MiB in one answer at all.
const maxExecOutput = 64 << 10

// tail keeps the end of what is written to it: the end says where a command that wrote too much went wrong. The image's
// programs decide how much they write, and must not decide how much memory this plugin takes. The zero value is ready.
type tail struct{ kept []byte }

// Write implements io.Writer.
func (t *tail) Write(p []byte) (int, error) {
	n := len(p)
	t.kept = append(t.kept, p[max(0, n-maxExecOutput):]...)
	// Not at each write, which would move all of it for every line.
	if len(t.kept) > 2*maxExecOutput {
		t.kept = append(t.kept[:0], t.bytes()...)
	}
	return n, nil
}

// bytes are the last that were written.
func (t *tail) bytes() []byte { return t.kept[max(0, len(t.kept)-maxExecOutput):] }
