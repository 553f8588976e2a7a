defmodule ExternalService.Definition do
  # What `use ExternalService` makes of a module: where its options go, and the functions it gets.
  @moduledoc false

  alias ExternalService.{ConfigCheck, Lifecycle, Options}

  @doc "Starts the service of a module, `overrides` being what its `start_link/1` was given."
  @spec start(module(), ExternalService.service(), keyword(), keyword()) :: :ok
  def start(module, name, options, overrides),
    do: :ok = Lifecycle.start(name, options |> Keyword.delete(:name) |> Options.merge(overrides), module)

  @doc "Returns the module of this name that uses the library, or says why there is none."
  @spec find(String.t()) :: module() | {:error, String.t()}
  def find(name) do
    module = Module.concat([name])

    cond do
      not Code.ensure_loaded?(module) -> {:error, "There is no module #{name}."}
      not function_exported?(module, :__external_service__, 0) -> {:error, "#{name} does not use ExternalService."}
      true -> module
    end
  end

  @doc "Returns what `use ExternalService, options` puts into the module."
  @spec quoted(Macro.t()) :: Macro.t()
  def quoted(options), do: {:__block__, [], [options(options), starting(), calls(), tasks(), questions(), orders()]}

  # Defines `@external_service`, the name, and `__external_service__/0`, the options. Options that hold an anonymous
  # function can not be kept in a module attribute: they become the body of a function, where that function may call
  # others of the module. All others are evaluated here and now.
  defp options(options) do
    if anonymous_function?(options) do
      quote do
        @external_service ExternalService.Definition.named(unquote(without_functions(options)), __ENV__)
        @doc false
        def __external_service__, do: unquote(options)
      end
    else
      quote do
        @external_service_options unquote(options)
        @external_service ExternalService.Definition.named(@external_service_options, __ENV__)
        @doc false
        def __external_service__, do: @external_service_options
      end
    end
  end

  @doc "Returns the name of the service that is being compiled, and reports what is suspicious about its options."
  @spec named(keyword(), Macro.Env.t()) :: ExternalService.service()
  def named(options, env) do
    {name, options} = Keyword.pop(options, :name, env.module)
    ConfigCheck.report_compiled(name, options, env)
    name
  end

  defp starting do
    quote do
      @doc "Returns the specification that starts the service under a supervisor."
      @spec child_spec(keyword()) :: Supervisor.child_spec()
      def child_spec(overrides \\ []),
        do: %{id: __MODULE__, type: :worker, start: {__MODULE__, :start_link, [overrides]}}

      @doc "Starts the service with `overrides` merged over the module's options."
      @spec start_link(keyword()) :: Agent.on_start()
      def start_link(overrides \\ []) do
        options = __external_service__()
        start = fn -> ExternalService.Definition.start(__MODULE__, @external_service, options, overrides) end
        Agent.start_link(start, name: Module.concat(__MODULE__, Starter))
      end
    end
  end

  defp calls do
    quote do
      @doc "See `ExternalService.call/2`."
      def call(fun), do: ExternalService.call(@external_service, fun)

      @doc "See `ExternalService.call/3`."
      def call(retry, fun), do: ExternalService.call(@external_service, retry, fun)

      @doc "See `ExternalService.call!/2`."
      def call!(fun), do: ExternalService.call!(@external_service, fun)

      @doc "See `ExternalService.call!/3`."
      def call!(retry, fun), do: ExternalService.call!(@external_service, retry, fun)
    end
  end

  defp tasks do
    quote do
      @doc "See `ExternalService.call_async/2`."
      def call_async(fun), do: ExternalService.call_async(@external_service, fun)

      @doc "See `ExternalService.call_async/3`."
      def call_async(retry, fun), do: ExternalService.call_async(@external_service, retry, fun)

      @doc "See `ExternalService.call_async_stream/3`."
      def call_async_stream(enumerable, fun), do: ExternalService.call_async_stream(enumerable, @external_service, fun)

      @doc "See `ExternalService.call_async_stream/4`."
      def call_async_stream(enumerable, options, fun),
        do: ExternalService.call_async_stream(enumerable, @external_service, options, fun)

      @doc "See `ExternalService.call_async_stream/5`."
      def call_async_stream(enumerable, retry, async, fun),
        do: ExternalService.call_async_stream(enumerable, @external_service, retry, async, fun)
    end
  end

  defp questions do
    quote do
      @doc "See `ExternalService.available?/1`."
      def available?, do: ExternalService.available?(@external_service)

      @doc "See `ExternalService.blown?/1`."
      def blown?, do: ExternalService.blown?(@external_service)

      @doc "See `ExternalService.saturated?/1`."
      def saturated?, do: ExternalService.saturated?(@external_service)

      @doc "See `ExternalService.state/1`."
      def state, do: ExternalService.state(@external_service)

      @doc "See `ExternalService.counts/1`."
      def counts, do: ExternalService.counts(@external_service)

      # Modules that were written before these functions came may have functions of their own by these names.
      defoverridable state: 0, counts: 0
    end
  end

  defp orders do
    quote do
      @doc "See `ExternalService.reset/1`."
      def reset, do: ExternalService.reset(@external_service)

      @doc "See `ExternalService.reset_all/1`."
      def reset_all, do: ExternalService.reset_all(@external_service)

      @doc "See `ExternalService.open/2`."
      def open(options \\ []), do: ExternalService.open(@external_service, options)

      @doc "See `ExternalService.close/1`."
      def close, do: ExternalService.close(@external_service)

      @doc "See `ExternalService.bypass/1`."
      def bypass, do: ExternalService.bypass(@external_service)

      @doc "See `ExternalService.reconfigure/2`."
      def reconfigure(options), do: ExternalService.reconfigure(@external_service, options)

      @doc "See `ExternalService.endpoints/1`."
      def endpoints, do: ExternalService.endpoints(@external_service)

      @doc "See `ExternalService.put_endpoints/2`."
      def put_endpoints(endpoints), do: ExternalService.put_endpoints(@external_service, endpoints)

      @doc "See `ExternalService.drain/2`."
      def drain(endpoint), do: ExternalService.drain(@external_service, endpoint)

      # Like state and counts above.
      defoverridable open: 0, open: 1, close: 0, bypass: 0
      defoverridable reconfigure: 1, endpoints: 0, put_endpoints: 1, drain: 1
    end
  end

  defp anonymous_function?(ast), do: without_functions(ast) != ast

  # Functions that stand in for anonymous ones, which can not be called before the module is compiled, raise when called.
  defp without_functions(ast) do
    Macro.prewalk(ast, fn
      {kind, _meta, [_ | _]} when kind in [:fn, :&] -> quote(do: Function.capture(:erlang, :error, 1))
      node -> node
    end)
  end
end
