package private

import (
	"bufio"
	"debug/elf"
	"errors"
	"io"
	"os"
	"strings"
)

// maxScripts is how many interpreters the kernel follows from a script to a program.
const maxScripts = 5

// errMusl says that a program could not even start: musl's loader ends it when it cannot load what is preloaded.
var errMusl = errors.New("it is a program of musl, whose loader cannot load the GPU driver nor the shadow libraries: run it without " +
	"`tranche run`, or build it for glibc")

// CheckLoader returns an error if the loader of a program, or of the interpreter of a script, cannot load the shadow libraries. A
// file that it cannot read is left to the kernel.
func CheckLoader(path string) error {
	for range maxScripts {
		if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
			return nil //nolint:nilerr // exec reports it
		}
		interpreter, script := scriptInterpreter(path)
		if !script {
			break
		}
		path = interpreter
	}
	if strings.Contains(programLoader(path), "ld-musl") {
		return errMusl
	}
	return nil
}

// scriptInterpreter returns the program in the first line of a script.
func scriptInterpreter(path string) (interpreter string, script bool) {
	file, err := os.Open(path)
	if err != nil {
		return "", false
	}
	defer file.Close()
	line, _ := bufio.NewReader(io.LimitReader(file, 256)).ReadString('\n')
	rest, script := strings.CutPrefix(line, "#!")
	fields := strings.Fields(rest)
	if !script || len(fields) == 0 {
		return "", false
	}
	return fields[0], true
}

// programLoader returns the loader that a program names; empty if it is static, or no program.
func programLoader(path string) string {
	file, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	for _, header := range file.Progs {
		if header.Type == elf.PT_INTERP {
			loader, _ := io.ReadAll(io.LimitReader(header.Open(), 4096))
			return string(loader)
		}
	}
	return ""
}
