package doctor

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// freeBytes returns how many bytes may be written to the file system of dir.
func freeBytes(dir string) (n uint64, known bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return 0, false
	}
	return st.Bavail * uint64(st.Bsize), true
}

// openFiles returns how many files this process has open. Counting needs one more descriptor: if none is
// left, the count is the limit.
func openFiles() (n uint64, known bool) {
	dir, err := os.Open("/proc/self/fd")
	if errors.Is(err, unix.EMFILE) {
		return fileLimit()
	}
	if err != nil {
		return 0, false
	}
	defer dir.Close()
	for {
		names, err := dir.Readdirnames(1024)
		n += uint64(len(names))
		if err != nil {
			return n, errors.Is(err, io.EOF)
		}
	}
}

// holderOf returns the process that listens on a TCP port of this machine, as far as this user may see it.
func holderOf(port string) portHolder {
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return portHolder{}
	}
	sockets := map[string]bool{}
	for _, table := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(table)
		if err != nil {
			continue
		}
		for _, inode := range listenerInodes(string(data), uint16(n)) {
			sockets[fmt.Sprintf("socket:[%s]", inode)] = true
		}
	}
	own, _ := os.Readlink("/proc/self/exe") // "" matches no process
	files, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, file := range files {
		if target, err := os.Readlink(file); err != nil || !sockets[target] {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(file, "/")[2])
		if err != nil {
			continue
		}
		exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
		return portHolder{pid: pid, name: filepath.Base(exe), ours: own != "" && filepath.Base(exe) == filepath.Base(own)}
	}
	return portHolder{}
}

// listenerInodes returns the inodes of the sockets which listen on a port, from a table in the format of
// /proc/net/tcp.
func listenerInodes(table string, port uint16) (inodes []string) {
	const listening = "0A"
	for line := range strings.Lines(table) {
		// sl local_address rem_address st tx:rx tr:tm retrnsmt uid timeout inode …
		f := strings.Fields(line)
		if len(f) < 10 || f[3] != listening {
			continue
		}
		if _, at, ok := strings.Cut(f[1], ":"); ok && strings.EqualFold(at, fmt.Sprintf("%04X", port)) {
			inodes = append(inodes, f[9])
		}
	}
	return inodes
}
