# Decorator.Define is waited for, since in the tests it is part of this project.
if match?({:module, _}, Code.ensure_compiled(Decorator.Define)) do
  defmodule ExternalService.Decorator do
    @moduledoc """
    Makes functions calls of a service with a decorator above them. It is there where the `:decorator` library is.

        defmodule MyApp.Weather do
          use ExternalService.Decorator

          @decorate external_call(:weather)
          def today(city) do
            case MyApp.Client.get("/today/" <> city) do
              {:ok, %{status: 503}} -> :retry
              other -> other
            end
          end

          @decorate external_call!(:weather, max_attempts: 1)
          def tomorrow(city), do: MyApp.Client.get!("/tomorrow/" <> city)
        end

    The body becomes the function that is given to `ExternalService.call/2` or, with a `!`, to `ExternalService.call!/2`; it
    runs once for each attempt. A second argument are the options of `ExternalService.call/3`. Both are evaluated on each
    call, and may use the function's own arguments.
    """

    use Decorator.Define, external_call: 1, external_call: 2, external_call!: 1, external_call!: 2

    @doc "The body of a function as a call of the service."
    @spec external_call(Macro.t(), Macro.t(), map()) :: Macro.t()
    def external_call(service, body, _context) do
      quote do
        ExternalService.call(unquote(service), fn -> unquote(body) end)
      end
    end

    @doc "The same with options for the call."
    @spec external_call(Macro.t(), Macro.t(), Macro.t(), map()) :: Macro.t()
    def external_call(service, retry, body, _context) do
      quote do
        ExternalService.call(unquote(service), unquote(retry), fn -> unquote(body) end)
      end
    end

    @doc "The body of a function as a call that raises its errors."
    @spec external_call!(Macro.t(), Macro.t(), map()) :: Macro.t()
    def external_call!(service, body, _context) do
      quote do
        ExternalService.call!(unquote(service), fn -> unquote(body) end)
      end
    end

    @doc "The same with options for the call."
    @spec external_call!(Macro.t(), Macro.t(), Macro.t(), map()) :: Macro.t()
    def external_call!(service, retry, body, _context) do
      quote do
        ExternalService.call!(unquote(service), unquote(retry), fn -> unquote(body) end)
      end
    end
  end
end
