defmodule ExternalService.Gateway do
  @moduledoc """
  The former way to define a service in a module: `use ExternalService` with the names that its functions had then.

      defmodule MyApp.Search do
        use ExternalService.Gateway, retry: [max_attempts: 3]

        def find(word), do: external_call(fn -> MyApp.Client.get("/search/" <> word) end)
      end

  The options are those of `use ExternalService`, and the module has its functions, too. Those of version 1, such as
  `fuse: [strategy: ...]`, are refused when the service is started, with today's spelling.

  | here | today |
  | --- | --- |
  | `external_call/1`, `external_call/2` | `call/1`, `call/2` |
  | `external_call!/1`, `external_call!/2` | `call!/1`, `call!/2` |
  | `external_call_async/1`, `external_call_async/2` | `call_async/1`, `call_async/2` |
  | `external_call_async_stream/2`, `/3`, `/4` | `call_async_stream/2`, `/3`, `/4` |
  | `reset_fuse/0` | `reset/0` |

  `mix external_service.migrate lib` finds the places to change.
  """

  @doc "Defines a service in a module. See `ExternalService.__using__/1`."
  @deprecated "Use `use ExternalService` instead"
  defmacro __using__(options) do
    quote do
      use ExternalService, unquote(options)
      unquote(calls())
      unquote(tasks())
    end
  end

  defp calls do
    quote do
      @doc deprecated: "Use call/1 instead"
      def external_call(fun), do: call(fun)

      @doc deprecated: "Use call/2 instead"
      def external_call(retry, fun), do: call(retry, fun)

      @doc deprecated: "Use call!/1 instead"
      def external_call!(fun), do: call!(fun)

      @doc deprecated: "Use call!/2 instead"
      def external_call!(retry, fun), do: call!(retry, fun)

      @doc deprecated: "Use reset/0 instead"
      def reset_fuse, do: reset()
    end
  end

  defp tasks do
    quote do
      @doc deprecated: "Use call_async/1 instead"
      def external_call_async(fun), do: call_async(fun)

      @doc deprecated: "Use call_async/2 instead"
      def external_call_async(retry, fun), do: call_async(retry, fun)

      @doc deprecated: "Use call_async_stream/2 instead"
      def external_call_async_stream(enumerable, fun), do: call_async_stream(enumerable, fun)

      @doc deprecated: "Use call_async_stream/3 instead"
      def external_call_async_stream(enumerable, options, fun), do: call_async_stream(enumerable, options, fun)

      @doc deprecated: "Use call_async_stream/4 instead"
      def external_call_async_stream(enumerable, retry, async, fun),
        do: call_async_stream(enumerable, retry, async, fun)
    end
  end
end
