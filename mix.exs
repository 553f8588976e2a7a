defmodule Mix.Tasks.Compile.ExternalServiceNative do
  # Builds the C library that ExternalService.Native loads, by running make. The task lives in this file, and not in a
  # package, so that building needs nothing but Elixir, make and a C compiler.
  @moduledoc false
  use Mix.Task.Compiler

  @library "priv/external_service.so"

  @install """
  Install GNU make, a C compiler and the Erlang headers, then compile again:

    * Debian, Ubuntu: apt-get install build-essential erlang-dev
    * macOS: xcode-select --install
    * in a checkout of external_service: script/setup
  """

  @impl true
  def run(args) do
    make = program!(System.get_env("MAKE") || default_make(), "make")
    compiler = present_env("CC") || "cc"
    program!(compiler, "the C compiler")
    header_dir = header_dir!()

    link_priv!()
    before = library_stat()
    build!(make, args, compiler, header_dir)
    {if(library_stat() == before, do: :noop, else: :ok), []}
  end

  @impl true
  def clean do
    app_path = Mix.Project.app_path()
    Enum.each([Path.join(app_path, @library) | Path.wildcard(app_path <> "/obj-*")], &File.rm_rf!/1)
  end

  # A build folder from before there was a priv has one of its own. Mix would copy ours over it, and a library that a VM
  # has loaded must not be written into: so it becomes the link that it is in every new build.
  defp link_priv! do
    built = Path.join(Mix.Project.app_path(), "priv")

    if File.dir?("priv") and match?({:ok, %{type: :directory}}, File.lstat(built)) do
      File.rm_rf!(built)
      Mix.Project.build_structure()
    end
  end

  defp build!(make, args, compiler, header_dir) do
    force = if "--force" in args, do: ["-B"], else: []
    jobs = "-j#{System.schedulers_online()}"
    options = [env: make_env(compiler, header_dir), into: IO.stream(), stderr_to_stdout: true]

    case System.cmd(make, ["-s", jobs, "all" | force], options) do
      {_, 0} ->
        :ok

      {_, status} ->
        Mix.raise("""
        ExternalService could not compile its C library: #{make} exited with status #{status}. \
        The C compiler is `#{compiler}` (set CC to use another one); what it said is above.

        #{@install}\
        """)
    end
  end

  # MAKEFLAGS of an outer make would promise us a job server that is not reachable from here.
  defp make_env(compiler, header_dir) do
    [
      {"CC", compiler},
      {"ERTS_INCLUDE_DIR", header_dir},
      {"MIX_APP_PATH", build_path!()},
      {"PLATFORM", "#{:erlang.system_info(:version)}-#{:erlang.system_info(:system_architecture)}"},
      {"MAKEFLAGS", nil},
      {"MAKELEVEL", nil}
    ]
  end

  # Make splits names at spaces. The way from here to the build folder rarely has one, even where the folder that
  # both are in does.
  defp build_path! do
    path = from_here(Path.split(Path.expand(Mix.Project.app_path())), Path.split(File.cwd!()))

    if path =~ ~r/\s/ do
      Mix.raise("""
      ExternalService builds its C library with make, which can not work in a folder with a space in its name: \
      #{path}. Rename the folder, or set MIX_BUILD_PATH to one without a space.
      """)
    end

    path
  end

  defp from_here([same | path], [same | here]), do: from_here(path, here)
  defp from_here(path, here), do: Path.join(Enum.map(here, fn _ -> ".." end) ++ path)

  defp default_make do
    case :os.type() do
      {:unix, bsd} when bsd in [:freebsd, :netbsd, :openbsd, :dragonfly] -> "gmake"
      _other -> "make"
    end
  end

  defp program!(command, what) do
    name = command |> OptionParser.split() |> List.first()

    System.find_executable(name) ||
      Mix.raise("ExternalService compiles a C library, but #{what} (`#{command}`) was not found.\n\n#{@install}")
  end

  defp header_dir! do
    root = :code.root_dir()
    candidates = ["#{root}/erts-#{:erlang.system_info(:version)}/include", "#{root}/usr/include"]

    present_env("ERTS_INCLUDE_DIR") ||
      Enum.find(candidates, &File.exists?(Path.join(&1, "erl_nif.h"))) ||
      Mix.raise("""
      ExternalService compiles a C library, but the Erlang header erl_nif.h was not found in \
      #{Enum.join(candidates, " or ")}.

      #{@install}\
      """)
  end

  defp library_stat, do: File.stat(Path.join(Mix.Project.app_path(), @library))

  defp present_env(name) do
    case System.get_env(name) do
      value when value in [nil, ""] -> nil
      value -> value
    end
  end
end

defmodule ExternalService.MixProject do
  use Mix.Project

  @version "0.1.0"

  def project do
    [
      app: :external_service,
      version: @version,
      elixir: "~> 1.14",
      elixirc_paths: elixirc_paths(Mix.env()),
      compilers: [:external_service_native | Mix.compilers()],
      start_permanent: Mix.env() == :prod,
      deps: deps(Code.ensure_loaded?(Hex)),
      name: "ExternalService",
      description: description(),
      package: package(),
      docs: docs()
    ]
  end

  def application do
    [mod: {ExternalService.Application, []}, extra_applications: extra_applications(Mix.env())]
  end

  # PropEr, for the tests, is one of the system's packages: part of OTP as far as mix can tell.
  defp extra_applications(:test), do: [:logger, proper: :optional]
  defp extra_applications(_env), do: [:logger]

  defp elixirc_paths(:test), do: ["lib", "test/support"]
  defp elixirc_paths(_env), do: ["lib"]

  # The library needs no package. Those that it uses where the user has them can only be listed where Hex is there to
  # know them.
  defp deps(false), do: []

  defp deps(true) do
    [
      {:telemetry, "~> 1.0", optional: true},
      {:nimble_options, "~> 1.0", optional: true},
      {:plug, "~> 1.11", optional: true},
      {:flow, "~> 1.0", optional: true},
      {:decorator, "~> 1.4", optional: true},
      {:ex_doc, "~> 0.31", only: :dev, runtime: false}
    ]
  end

  defp description do
    "Calls to services that can fail: retries with backoff and circuit breakers, on a native core."
  end

  defp package do
    [
      licenses: ["Apache-2.0"],
      links: %{},
      files: ~w(lib c_src Makefile mix.exs .formatter.exs README.md CHANGELOG.md usage-rules.md LICENSE)
    ]
  end

  defp docs do
    [
      main: "readme",
      source_ref: "v#{@version}",
      extras: ["README.md", "CHANGELOG.md", "CONTRIBUTING.md", "usage-rules.md" | Path.wildcard("guides/*.md")]
    ]
  end
end
