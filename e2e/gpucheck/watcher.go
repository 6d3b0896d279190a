package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"time"
)

// watchPatience bounds one look at NVML.
const watchPatience = 15 * time.Second

// sample is what NVML says of the GPU at one moment.
type sample struct {
	Result   int           `json:"result"`
	Total    uint64        `json:"total"`
	Free     uint64        `json:"free"`
	Used     uint64        `json:"used"`
	ResultV2 int           `json:"result_v2"`
	TotalV2  uint64        `json:"total_v2"`
	FreeV2   uint64        `json:"free_v2"`
	UsedV2   uint64        `json:"used_v2"`
	Reserved uint64        `json:"reserved"`
	V1       processesList `json:"v1"`
	V2       processesList `json:"v2"`
	V3       processesList `json:"v3"`
}

// processesList is one version of the list of running processes.
type processesList struct {
	Result int `json:"result"`
	List   []struct {
		PID   int    `json:"pid"`
		Bytes uint64 `json:"bytes"`
	} `json:"list"`
}

// bytesOf is what the processes hold together; false if NVML does not tell of every one of them.
func (s *sample) bytesOf(pids ...int) (uint64, bool) {
	var sum uint64
	lists := []processesList{s.V3, s.V2, s.V1}
	for _, pid := range pids {
		found := false
		for _, list := range lists {
			if list.Result != 0 {
				continue
			}
			for _, process := range list.List {
				if process.PID == pid && process.Bytes > 0 {
					sum += process.Bytes
					found = true
				}
			}
			break
		}
		if !found {
			return 0, false
		}
	}
	return sum, true
}

// watcher is a process that asks NVML. Bare it tells the truth.
type watcher struct {
	cmd   *exec.Cmd
	stdin io.WriteCloser
	lines chan string
	errs  lastBytes

	uuid, driver, file string
}

// watch starts one. The digits are those of the GPU's UUID.
func (c *checker) watch(env []string, digits string) (*watcher, error) {
	w := &watcher{cmd: exec.Command(c.program("watch"), digits), lines: make(chan string, 16)}
	w.cmd.Env = env
	w.cmd.Stderr = &w.errs
	w.cmd.WaitDelay = time.Second
	var err error
	if w.stdin, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 1<<20)
		for lines.Scan() {
			w.lines <- lines.Text()
		}
		close(w.lines)
	}()
	var gpu struct{ UUID, Driver, File string }
	if err := w.read(&gpu); err != nil {
		w.close()
		return nil, err
	}
	w.uuid, w.driver, w.file = gpu.UUID, gpu.Driver, gpu.File
	return w, nil
}

func (w *watcher) read(into any) error {
	select {
	case line, ok := <-w.lines:
		if !ok {
			return errors.New("NVML cannot be asked" + w.errs.said())
		}
		return json.Unmarshal([]byte(line), into)
	case <-time.After(watchPatience):
		return fmt.Errorf("NVML did not answer within %v", watchPatience)
	}
}

func (w *watcher) sample() (*sample, error) {
	var s sample
	if _, err := fmt.Fprintln(w.stdin, "sample"); err != nil {
		return nil, errors.New("NVML cannot be asked any more" + w.errs.said())
	}
	if err := w.read(&s); err != nil {
		return nil, err
	}
	if s.Result != 0 {
		return nil, fmt.Errorf("NVML does not say how much memory is used: error %d", s.Result)
	}
	return &s, nil
}

func (w *watcher) close() {
	w.stdin.Close()
	_ = w.cmd.Process.Kill()
	_ = w.cmd.Wait()
}
