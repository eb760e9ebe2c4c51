module netacc.test/cgroup

go 1.20
