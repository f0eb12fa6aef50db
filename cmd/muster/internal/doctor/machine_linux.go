package doctor

import "golang.org/x/sys/unix"

// checkClock asks the kernel whether the clock is synchronized.
func checkClock(f *findings) {
	state, err := unix.Adjtimex(new(unix.Timex))
	switch {
	case err != nil:
		f.add("clock", Unknown, "", "the kernel does not say: %v", err)
	case state == unix.TIME_ERROR:
		f.add("clock", Warning, "run chrony or systemd-timesyncd: certificates and logs need the time",
			"it is not synchronized")
	default:
		f.add("clock", OK, "", "synchronized")
	}
}

// diskSpace returns the bytes of the file system at path, and those that are free.
func diskSpace(path string) (free, all uint64, err error) {
	var s unix.Statfs_t
	if err := unix.Statfs(path, &s); err != nil {
		return 0, 0, err
	}
	return s.Bavail * uint64(s.Bsize), s.Blocks * uint64(s.Bsize), nil
}
