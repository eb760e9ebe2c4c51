module netacc.test/pidfd

go 1.22
