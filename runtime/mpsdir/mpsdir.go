// Package mpsdir names the directories that the MPS control daemon of a GPU shares with its clients. The device plugin
// creates them; containers have them mounted.
package mpsdir

import "path/filepath"

const (
	// Client is the part of the daemon's directory that clients have: Control, Lock, and the pipe into its log.
	Client = "client"
	// Namespaces has a directory for each claim that has a namespace of MPS v3, by the claim's ID. It has Control alone, which is
	// the namespace's socket.
	Namespaces = "ns"
	// Shm is the file system in which the daemon's servers and their clients share memory.
	Shm = "shm"
	// Control is the socket on which the daemon listens for clients.
	Control = "control"
	// Lock is the file that the daemon keeps locked. What clients do with it is not documented; they may write to it.
	Lock = "control_lock"
)

// Of returns the parent directory of those of a GPU.
func Of(runDir, gpuUUID string) string { return filepath.Join(runDir, "mps", gpuUUID) }
