/* SPDX-License-Identifier: BSD-2-Clause */
/* The first process of an emulated machine (arm64.py): has the kernel verify every program, and switches off.
 *
 * /mrc.bpf.o is the object, /settings.N the settings (.rodata) of variant N. Writes a line for each program: variant,
 * program, instructions verified; or the error.
 */
#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

static char last[256]; /* libbpf's last message but empty lines */

static int keep(enum libbpf_print_level level, const char *format, va_list arguments)
{
	char line[sizeof(last)];

	(void)level;
	vsnprintf(line, sizeof(line), format, arguments);
	line[strcspn(line, "\n")] = 0;
	if (*line)
		strcpy(last, line);
	return 0;
}

/* Load one program with these settings. Returns the instructions verified, or a negative error. */
static long load(const char *name, const void *settings, size_t length)
{
	struct bpf_object *object = bpf_object__open_file("/mrc.bpf.o", NULL);
	struct bpf_prog_info info = {};
	struct bpf_program *program;
	__u32 size = sizeof(info);
	struct bpf_map *map;
	long found;

	if (!object)
		return -errno;
	bpf_object__for_each_map(map, object)
		if (strstr(bpf_map__name(map), ".rodata") && bpf_map__set_initial_value(map, settings, length))
			return -EINVAL;
	bpf_object__for_each_program(program, object)
		bpf_program__set_autoload(program, !strcmp(bpf_program__name(program), name));
	found = bpf_object__load(object);
	program = bpf_object__find_program_by_name(object, name);
	if (!found)
		found = bpf_obj_get_info_by_fd(bpf_program__fd(program), &info, &size) ? -errno : info.verified_insns;
	bpf_object__close(object);
	return found;
}

int main(void)
{
	struct bpf_object *object;
	struct bpf_program *program;
	static char settings[65536];
	struct utsname name;
	char path[32];
	long found;
	int n;

	mkdir("/proc", 0755);
	mkdir("/sys", 0755);
	mount("proc", "/proc", "proc", 0, NULL);
	mount("sysfs", "/sys", "sysfs", 0, NULL);
	libbpf_set_print(keep);
	uname(&name);
	printf("kernel %s %s, pages of %ld bytes\n", name.release, name.machine, sysconf(_SC_PAGESIZE));
	object = bpf_object__open_file("/mrc.bpf.o", NULL);
	for (n = 0; object; n++) {
		size_t length;
		FILE *file;

		snprintf(path, sizeof(path), "/settings.%d", n);
		file = fopen(path, "r");
		if (!file)
			break;
		length = fread(settings, 1, sizeof(settings), file);
		fclose(file);
		bpf_object__for_each_program(program, object) {
			found = load(bpf_program__name(program), settings, length);
			printf("program %d %s %ld %s\n", n, bpf_program__name(program), found, found < 0 ? last : "");
			fflush(stdout);
		}
	}
	printf("end\n");
	fflush(stdout);
	sync();
	reboot(RB_POWER_OFF);
	return 1;
}
