# SPDX-License-Identifier: Apache-2.0
defmodule ExternalService.PackagingTest do
  # What other projects see: a copy of the files that are under version control (or would be) is built and used by
  # freshly generated projects, each with a mix of its own. The folder has a space in its name, as users' folders do.
  use ExUnit.Case, async: false

  @moduletag timeout: 600_000

  @answer ~S|:ok = ExternalService.start(:x, []); IO.puts("answer: #{ExternalService.call(:x, fn -> 42 end)}")|

  setup_all do
    root = Path.join(System.tmp_dir!(), "external service #{System.os_time()}")
    on_exit(fn -> File.rm_rf!(root) end)
    copy_sources(Path.join(root, "external_service"))
    {:ok, root: root, sources: Path.join(root, "external_service")}
  end

  describe "a project that depends on a folder" do
    setup %{root: root} do
      {:ok, project: generate_project(root, "by_path", path: "../external_service")}
    end

    test "calls a service, before and after the library is rebuilt under its feet", %{project: project} do
      script = """
      #{@answer}
      library = Application.app_dir(:external_service, "priv/external_service.so")
      before = File.stat!(library).inode
      {_, 0} = System.cmd("mix", ~w(deps.compile external_service), env: [{"CFLAGS", "-g"}], stderr_to_stdout: true)
      IO.puts("rebuilt: \#{File.stat!(library).inode != before}")
      #{@answer}
      """

      assert {output, 0} = run("mix", ["run", "-e", script], cd: project)
      assert output =~ ~r/answer: 42\nrebuilt: true\nanswer: 42\n/
    end
  end

  describe "a release of a project that depends on a git repository" do
    setup %{root: root, sources: sources} do
      commit_all(sources)
      project = generate_project(root, "by_git", git: sources)
      assert {_, 0} = run("mix", ["deps.get"], cd: project)
      {:ok, project: project}
    end

    test "calls a service, also when nothing but the release is left", %{root: root, project: project} do
      assert {_, 0} = run("mix", ["release"], cd: project, env: [{"MIX_ENV", "prod"}])
      release = Path.join(project, "_build/prod/rel/by_git")
      assert {"answer: 42\n", 0} = run(Path.join(release, "bin/by_git"), ["eval", @answer])

      moved = Path.join(root, "moved")
      File.rename!(release, moved)
      File.rm_rf!(project)
      assert {"answer: 42\n", 0} = run(Path.join(moved, "bin/by_git"), ["eval", @answer])
    end
  end

  describe "compiling" do
    test "puts objects into the build folder, and nothing but the library into the source tree",
         %{sources: sources} = context do
      assert {_, 0} = compile(context, [{"MIX_BUILD_PATH", Path.join(sources, "_build/apart")}])
      assert File.exists?(Path.join(sources, "_build/apart/lib/external_service/priv/external_service.so"))
      assert Path.wildcard(Path.join(sources, "_build/apart/lib/external_service/obj-*/core/*.o")) != []
      assert Path.wildcard(Path.join(sources, "{c_src,lib}/**/*.{o,d,so}")) == []
      assert Path.wildcard(Path.join(sources, "priv/*")) == [Path.join(sources, "priv/external_service.so")]
    end

    test "names a C compiler that fails", context do
      assert {output, 1} = compile(context, [{"CC", "false"}])
      assert output =~ "could not compile its C library"
      assert output =~ "The C compiler is `false`"
      assert output =~ "apt-get install build-essential erlang-dev"
    end

    test "names a C compiler that is not there", context do
      assert {output, 1} = compile(context, [{"CC", "no-such-compiler -O1"}])
      assert output =~ "the C compiler (`no-such-compiler -O1`) was not found"
      assert output =~ "apt-get install build-essential erlang-dev"
    end

    test "says that make is not there", %{root: root} = context do
      assert {output, 1} = compile(context, [{"PATH", path_without_make(Path.join(root, "bin"))}])
      assert output =~ ~r/g?make \(`g?make`\) was not found/
      assert output =~ "apt-get install build-essential erlang-dev"
      assert output =~ "script/setup"
    end
  end

  describe "a native library" do
    setup %{root: root} do
      app = Path.join(root, "unbuilt")
      File.mkdir_p!(Path.join(app, "priv"))
      File.cp_r!(Application.app_dir(:external_service, "ebin"), Path.join(app, "ebin"))
      on_exit(fn -> File.rm_rf!(app) end)
      {:ok, app: app, library: Path.join(app, "priv/external_service.so")}
    end

    test "that is missing is named by the first call, with the remedy", %{app: app, library: library} do
      assert_names_the_remedy(first_call(app), library)
    end

    test "that can not be loaded is named by the first call, with the remedy", %{app: app, library: library} do
      File.write!(library, "no library at all")
      assert_names_the_remedy(first_call(app), library)
    end
  end

  defp assert_names_the_remedy({output, status}, library) do
    assert status == 1
    assert output =~ library
    assert output =~ "architecture #{:erlang.system_info(:system_architecture)}"
    assert output =~ "OTP #{System.otp_release()}"
    assert output =~ "NIF version #{:erlang.system_info(:nif_version)}"
    assert output =~ "load_failed"
    assert output =~ "mix deps.compile external_service --force"
  end

  defp first_call(app) do
    run("elixir", ["-pa", Path.join(app, "ebin"), "-e", "ExternalService.Native.clock_now(nil)"])
  end

  defp compile(%{root: root, sources: sources}, env) do
    run("mix", ["compile"], cd: sources, env: [{"MIX_BUILD_PATH", Path.join(root, "build")} | env])
  end

  # The compiler flags, the sanitizers and the mix settings of this very run are none of another project's business.
  @ours ~w(CC CFLAGS CPPFLAGS LDFLAGS LD_PRELOAD ERTS_INCLUDE_DIR MAKE MAKEFLAGS MAKELEVEL ERL_FLAGS ERL_LIBS) ++
          ~w(MIX_ENV MIX_TARGET MIX_APP_PATH MIX_BUILD_PATH MIX_BUILD_ROOT MIX_DEPS_PATH MIX_EXS) ++
          ~w(GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE)

  defp run(program, args, options \\ []) do
    env = Enum.map(@ours, &{&1, nil}) ++ Keyword.get(options, :env, [])
    System.cmd(program, args, [env: env, stderr_to_stdout: true] ++ Keyword.take(options, [:cd]))
  end

  defp copy_sources(target) do
    for file <- source_files(), File.regular?(file) do
      File.mkdir_p!(Path.dirname(Path.join(target, file)))
      File.cp!(file, Path.join(target, file))
    end
  end

  # Where there is no git, as in an unpacked archive, there is nothing but sources.
  defp source_files do
    with true <- File.exists?(".git"),
         {files, 0} <- run("git", ~w(ls-files -z --cached --others --exclude-standard)) do
      String.split(files, "\0", trim: true)
    else
      _no_repository -> ["Makefile", "mix.exs" | Path.wildcard("{c_src,lib}/**")]
    end
  end

  defp commit_all(folder) do
    author = ~w(-c user.name=nobody -c user.email=nobody@localhost)
    assert {_, 0} = run("git", ~w(init --quiet), cd: folder)
    assert {_, 0} = run("git", ~w(add --all), cd: folder)
    assert {_, 0} = run("git", author ++ ~w(commit --quiet --no-gpg-sign --message sources), cd: folder)
  end

  defp generate_project(root, name, source) do
    assert {_, 0} = run("mix", ["new", name], cd: root)
    mixfile = Path.join([root, name, "mix.exs"])
    generated = File.read!(mixfile)
    dependency = inspect({:external_service, source})
    depending = String.replace(generated, "defp deps do\n    [", "defp deps do\n    [\n      #{dependency}")
    assert depending != generated
    File.write!(mixfile, depending)
    Path.join(root, name)
  end

  # One folder with everything that is on the path, but for make.
  defp path_without_make(folder) do
    File.mkdir_p!(folder)

    for directory <- "PATH" |> System.fetch_env!() |> String.split(":"),
        {:ok, programs} <- [File.ls(directory)],
        program <- programs -- ["make", "gmake"] do
      File.ln_s(Path.join(directory, program), Path.join(folder, program))
    end

    folder
  end
end
